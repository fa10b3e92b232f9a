"""Members: a skorch net that trains on a SAM mask, and its state."""

from sklearn_sharpbalance.members.inference import score_member
from sklearn_sharpbalance.members.module import MemberModule
from sklearn_sharpbalance.members.net import as_skorch_net, member_net
from sklearn_sharpbalance.members.schedules import Segment
from sklearn_sharpbalance.members.state import MemberState, initial_state, restore
from sklearn_sharpbalance.members.step import training_step

__all__ = [
    "MemberModule",
    "MemberState",
    "Segment",
    "as_skorch_net",
    "initial_state",
    "member_net",
    "restore",
    "score_member",
    "training_step",
]

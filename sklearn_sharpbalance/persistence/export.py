"""Export the whole ensemble as one model: ONNX and torch.export."""

import copy
import json
from collections.abc import Callable

import torch
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNetClassifier
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.aggregation.rules import (
    BestMemberAggregation,
    GreedySoupAggregation,
    MajorityAggregation,
    MeanLogitAggregation,
    MeanProbaAggregation,
    TemperatureAggregation,
    UniformSoupAggregation,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.shared_trunk import call_trunk
from sklearn_sharpbalance.persistence.archive import atomic_file, check_folder

LARGEST_ONNX = 1_900_000_000  # bytes of weights; one protobuf file ends at 2 GiB


def _mean_logit(logits: Tensor, _) -> Tensor:
    return logits.mean(0).softmax(-1)


def _mean_proba(logits: Tensor, _) -> Tensor:
    return logits.softmax(-1).mean(0)


def _temperature(logits: Tensor, rule) -> Tensor:
    return (logits.mean(0) / rule.temperature_).softmax(-1)


def _majority(logits: Tensor, _) -> Tensor:
    n_members, _, n_classes = logits.shape
    votes = nn.functional.one_hot(logits.argmax(-1), n_classes).float().mean(0)
    tie_break = 1e-6 / n_members
    return (1 - tie_break) * votes + tie_break * logits.mean(0).softmax(-1)


# Functions of the logits (M, N, C) of the predicting nets, by aggregation.
RULES: dict[type, Callable] = {
    MeanLogitAggregation: _mean_logit,
    MeanProbaAggregation: _mean_proba,
    MajorityAggregation: _majority,
    UniformSoupAggregation: _mean_logit,
    GreedySoupAggregation: _mean_logit,
    BestMemberAggregation: _mean_logit,
    TemperatureAggregation: _temperature,
}


class AggregatedModule(nn.Module):
    """Map samples, in the format of the user, to probabilities (N, C).

    Rows of a DataFrame are encoded before. The modules of the predicting nets include
    the standardisation.
    """

    def __init__(self, modules, rule, input_format, gives_proba, trunk=None):
        super().__init__()
        self.members, self.trunk = nn.ModuleList(modules), trunk
        self.rule, self.gives_proba = rule, gives_proba
        given, seen = input_format.given_shape, input_format.shape
        is_image = input_format.kind == "images"
        self.adds_channel = is_image and len(given) == 2
        self.moves_channel = is_image and len(given) == 3 and given != seen

    def forward(self, X):
        """Return the probabilities of a batch."""
        if self.adds_channel:
            X = X[:, None]
        if self.moves_channel:
            X = X.permute(0, 3, 1, 2)
        if self.trunk is not None:
            X = call_trunk(self.trunk, X).float()
        logits = torch.stack([member(X) for member in self.members])  # (M, N, C)
        if self.gives_proba:
            logits = logits.clamp_min(torch.finfo(torch.float32).tiny).log()
        return RULES[type(self.rule)](logits, self.rule)


def as_module(estimator) -> AggregatedModule:
    """Return a fitted ensemble as one module on the CPU, in evaluation mode."""
    check_is_fitted(estimator)
    _check_exportable(estimator)
    nets, trunk = estimator.predictors_, estimator.trunk_
    module = AggregatedModule(
        [_with_plain_weights(net.module_) for net in nets],
        rule=estimator.aggregation_,
        input_format=estimator.input_format_,
        gives_proba=isinstance(nets[0].criterion_, nn.NLLLoss),
        trunk=None if trunk is None else _with_plain_weights(trunk.module),
    )
    return module.eval().requires_grad_(False)


def _with_plain_weights(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU whose parametrizations are replaced by weights."""
    module = copy.deepcopy(module).cpu().eval()
    for layer in filter(parametrize.is_parametrized, list(module.modules())):
        names = list(layer.parametrizations)  # type: ignore[arg-type]
        weights = {name: getattr(layer, name) for name in names}
        # torch's remove_parametrizations changes the class, which copies share.
        layer.__class__ = parametrize.type_before_parametrizations(layer)
        del layer.parametrizations
        for name, weight in weights.items():
            layer.register_buffer(name, weight.detach())
    return module


def _check_exportable(estimator):
    rule, net = estimator.aggregation_, estimator.net_
    if type(rule) not in RULES:
        names = ", ".join(sorted(kind.__name__ for kind in RULES))
        raise InvalidInputError(
            f"{type(rule).__name__} cannot be exported: there is no torch "
            f"function for it. Use one of {names}, or export the modules of "
            "estimators_ one by one."
        )
    if estimator.input_format_.given_shape is None:
        raise InvalidInputError(
            "An ensemble that was fitted on a dictionary of arrays cannot be exported: "
            "the shape of its input is not known. Export the modules of estimators_."
        )
    if type(net).infer is not NeuralNetClassifier.infer:
        raise InvalidInputError(
            f"{type(net).__name__} overrides infer, which an export would leave out. "
            "Move what it does into the module."
        )


def _example(estimator, dtype):
    """Return a small batch of the shape and type that the exported model takes."""
    fmt = estimator.input_format_
    dtype = dtype or fmt.dtype
    allowed = ("float32", "uint8") if fmt.columns is None else ("float32",)
    if dtype not in allowed:
        names = " or ".join(map(repr, allowed))
        raise InvalidInputError(f"dtype must be {names}, got {dtype!r}.")
    shape = (2, *(fmt.given_shape if fmt.columns is None else fmt.shape))
    return torch.zeros(shape, dtype=getattr(torch, dtype))


def _program(estimator, dtype):
    module, X = as_module(estimator), _example(estimator, dtype)
    batch = torch.export.Dim("batch", min=1)
    try:
        return torch.export.export(module, (X,), dynamic_shapes={"X": {0: batch}})
    except Exception as error:  # its type depends on the network
        name = type(estimator.estimators_[0].module_.module).__name__
        raise InvalidInputError(
            f"torch.export cannot trace {name}: {in_a_sentence(error)}. In its forward "
            "pass, use x.shape[0] for the number of samples, not len(x), and do not "
            "branch on the values of tensors."
        ) from error


def export_torch(estimator, path, *, dtype=None) -> None:
    """Write the ensemble as one ``torch.export`` program; see the method.

    The labels of the columns are in its extra file ``classes.json``.
    """
    path = check_folder(path)
    program = _program(estimator, dtype)
    extra = {"classes.json": _classes(estimator)}
    with atomic_file(path) as file:
        torch.export.save(program, file, extra_files=extra)


def export_onnx(estimator, path, *, dtype=None) -> None:
    """Write the ensemble as one ONNX model; see the method.

    Weights beyond 1.9 GB go to a file beside it.
    """
    try:
        import onnxscript  # noqa: F401  torch needs it to write ONNX
    except ImportError as error:
        raise ImportError(
            'export_onnx needs onnx and onnxscript: pip install "sklearn-sharpbalance'
            '[onnx]".'
        ) from error
    from sklearn_sharpbalance.persistence.onnx_columns import (
        check_columns,
        with_columns,
    )

    path = check_folder(path)
    check_is_fitted(estimator)
    columns = estimator.input_format_.columns
    if columns is not None:
        check_columns(columns)
    program = _program(estimator, dtype)
    model = torch.onnx.export(
        program,
        input_names=["X"],
        output_names=["probabilities"],
        dynamic_shapes={"X": {0: "batch"}},  # without it torch invents a name
        dynamo=True,
        verbose=False,
    )
    assert model is not None  # only if torch writes the file itself
    model.model.metadata_props["classes"] = _classes(estimator)
    weights = sum(p.numel() * p.element_size() for p in program.state_dict.values())
    if weights > LARGEST_ONNX and columns is None:
        model.save(path, external_data=True)
        return
    proto = model.model_proto
    if columns is not None:
        proto = with_columns(proto, columns)
    with atomic_file(path) as file:
        file.write(proto.SerializeToString())


def _classes(estimator):
    classes = estimator.classes_
    plain = classes.dtype.kind in "biufUO"
    return json.dumps(classes.tolist() if plain else classes.astype(str).tolist())

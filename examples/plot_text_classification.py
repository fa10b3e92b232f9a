"""
Text: an ensemble of small transformers
=======================================

Members may take several inputs: a dictionary of arrays is passed to the module as
keywords. That is all a text classifier needs. Here a transformer is built from its
sizes, with random weights and nothing to download, and learns what a bag of words
cannot know: which words belong together.
"""

import os

import numpy as np
import torch
from matplotlib import pyplot as plt
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from torch import nn

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)

# %%
# Reviews that cannot be judged by their words
# --------------------------------------------
# Every review speaks of two things, one of them the film. The label is what it says of
# the film: "the music was bad but the film was not bad" is a good review. Good and bad
# words, and "not", occur equally often in both classes.

GOOD = ("good", "great", "lovely", "clever", "funny")
BAD = ("bad", "dull", "awful", "silly", "boring")
OTHERS = ("music", "cast", "sound", "story", "ending")


def clause(subject, positive, rng):
    negated = rng.random() < 0.5
    word = rng.choice(GOOD if positive != negated else BAD)
    return f"the {subject} was {'not ' if negated else ''}{word}"


def reviews(n, seed):
    rng = np.random.default_rng(seed)
    texts, labels = [], rng.integers(2, size=n)
    for label in labels:
        film = clause("film", label == 1, rng)
        other = clause(rng.choice(OTHERS), rng.random() < 0.5, rng)
        first, second = (film, other) if rng.random() < 0.5 else (other, film)
        texts.append(f"{first} {rng.choice(('and', 'but', 'while'))} {second}")
    return texts, np.where(labels == 1, "like", "dislike")


FAST = bool(os.environ.get("SHARPBALANCE_FAST"))  # shorter, for the tests
EPOCHS = 1 if FAST else 14

texts, y = reviews(700 if FAST else 1500, seed=0)
print(y[0], "|", texts[0])

# %%
# From words to numbers
# ---------------------
# Any tokenizer will do. This one numbers the words it knows; 0 fills up short texts and
# 1 stands for words never seen.

words = sorted({word for text in texts for word in text.split()})
number = {word: i + 2 for i, word in enumerate(words)}


def tokenize(texts, length=13):
    ids = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(ids, texts):
        known = [number.get(word, 1) for word in text.split()][:length]
        row[: len(known)] = known
    return {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}


X = tokenize(texts)
train, test = train_test_split(np.arange(len(y)), test_size=500, random_state=0)


def rows(X, indices):
    return {key: values[indices] for key, values in X.items()}


# %%
# The network
# -----------
# Its keywords are the keys of the dictionary. The ensemble fills in ``n_classes``.


class SmallTransformer(nn.Module):
    def __init__(self, vocabulary, n_classes, width=32, heads=4, layers=2, length=13):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, n_classes)

    def forward(self, input_ids, attention_mask):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.words(input_ids) + self.places(places)
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1)
        return self.head((x * mask).sum(1) / mask.sum(1))


ensemble = SharpBalanceEnsembleClassifier(
    SmallTransformer,
    n_estimators=3,
    estimator__module__vocabulary=len(words) + 2,
    optimizer=torch.optim.AdamW,
    lr=3e-3,
    max_epochs=EPOCHS,
    batch_size=64,
    warmup="sgd",
    random_state=0,
)
ensemble.fit(rows(X, train), y[train])

bag_of_words = make_pipeline(CountVectorizer(), LogisticRegression())
bag_of_words.fit([texts[i] for i in train], y[train])

print("bag of words:", bag_of_words.score([texts[i] for i in test], y[test]))
print("transformers:", ensemble.score(rows(X, test), y[test]))

# %%
# The same words in another order
# -------------------------------
# Both reviews of a pair hold the same words, so a bag of words must answer both alike.
# The transformers tell them apart.

pairs = [
    "the film was great and the cast was bad",
    "the cast was great and the film was bad",
    "the film was not dull while the music was funny",
    "the music was dull while the film was not funny",
]
likes = list(ensemble.classes_).index("like")
members = ensemble.member_predict_proba(tokenize(pairs))[:, :, likes]
bag = bag_of_words.predict_proba(pairs)[:, likes]

figure, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
places = np.arange(len(pairs))
ax.barh(places, bag, height=0.6, color="lightgrey", label="bag of words")
for i, proba in enumerate(members):
    ax.plot(proba, places + 0.15 * (i - 1), "o", label=f"transformer {i}")
ax.axvline(0.5, color="grey", linestyle="--")
ax.set_yticks(places, pairs)
ax.set(xlim=(-0.02, 1.02), xlabel='probability of "like"')
ax.invert_yaxis()
figure.legend(loc="outside upper center", ncols=4, fontsize="small")

# %%
# A Hugging Face model, the same way
# ----------------------------------
# Any module that returns logits is a member. A model from ``transformers`` returns an
# object that holds them, so it gets a module around it. Built from its configuration it
# downloads nothing; ``from_pretrained`` with a local folder would load weights.

try:
    from transformers import AlbertConfig, AlbertForSequenceClassification
except ImportError:
    print("transformers is not installed: pip install transformers")
else:

    class Albert(nn.Module):
        def __init__(self, vocabulary, n_classes):
            super().__init__()
            config = AlbertConfig(
                vocab_size=vocabulary,
                embedding_size=32,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=16,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                classifier_dropout_prob=0.0,
                initializer_range=0.1,
                num_labels=n_classes,
            )
            self.model = AlbertForSequenceClassification(config)

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids, attention_mask=attention_mask).logits

    albert = DeepEnsembleClassifier(
        Albert,
        n_estimators=2,
        estimator__module__vocabulary=len(words) + 2,
        optimizer=torch.optim.AdamW,
        lr=3e-3,
        max_epochs=EPOCHS,
        batch_size=64,
        random_state=0,
    )
    albert.fit(rows(X, train), y[train])
    print("ALBERT:", albert.score(rows(X, test), y[test]))

plt.show()

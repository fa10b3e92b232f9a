"""Naive implementations of the methods in float64, one tensor after the other."""

import math

import torch

from sklearn_sharpbalance.optim import OPTIMIZERS

METHODS = ("sam", "asam", "gsam", "friendly_sam", "momentum_sam", "look_sam")
OPTIONS = {
    "sam": {},
    "asam": {"eta": 0.02},
    "gsam": {"alpha": 0.3},
    "friendly_sam": {"sigma": 0.8, "lmbda": 0.7},
    "momentum_sam": {},
    "look_sam": {"k": 2, "alpha": 0.6},
}
BASES = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.02, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.1}),
}


def problem(seed=0, steps=5, dtype=torch.float64):
    """Return start weights of a network 3-4-2, and one random batch for each step."""
    rng = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (4,), (2, 4), (2,)]
    start = [torch.randn(s, generator=rng, dtype=torch.float64) for s in shapes]
    batches = [
        (
            torch.randn(8, 3, generator=rng, dtype=torch.float64).to(dtype),
            torch.randint(2, (8,), generator=rng),
        )
        for _ in range(steps)
    ]
    return [w.to(dtype) for w in start], batches


def loss_of(weights, batch):
    X, y = batch
    hidden = torch.tanh(X @ weights[0].T + weights[1])
    return torch.nn.functional.cross_entropy(hidden @ weights[2].T + weights[3], y)


def gradient(weights, batch, loss=loss_of):
    weights = [w.detach().clone().requires_grad_() for w in weights]
    return list(torch.autograd.grad(loss(weights, batch), weights))


def norm(tensors):
    return math.sqrt(math.fsum(float(x) ** 2 for t in tensors for x in t.flatten()))


def dot(left, right):
    pairs = zip(left, right)
    return math.fsum(float((a * b).sum()) for a, b in pairs)


class NaiveSAM:
    """One sharpness-aware optimizer; the base optimizer uses :meth:`direction`."""

    def __init__(self, method, rho, **options):
        self.method, self.rho, self.options = method, rho, options
        self.average = None
        self.steps, self.orthogonal = 0, None

    def epsilon(self, w, g):
        if self.method == "asam":
            T = [x.abs() + self.options["eta"] for x in w]
            length = norm([t * x for t, x in zip(T, g)])
            return [self.rho * t * t * x / (length + 1e-12) for t, x in zip(T, g)]
        d = g
        if self.method == "friendly_sam":
            lmbda, sigma = self.options["lmbda"], self.options["sigma"]
            m = self.average or [torch.zeros_like(x) for x in g]
            self.average = [lmbda * a + (1 - lmbda) * x for a, x in zip(m, g)]
            d = [x - sigma * a for x, a in zip(g, self.average)]
        return [self.rho * x / (norm(d) + 1e-12) for x in d]

    def direction(self, w, batch, loss=loss_of, momentum=None):
        """Return the direction of descent; ``momentum`` is the base optimizer's."""
        if self.method == "momentum_sam":
            v = momentum or [torch.zeros_like(x) for x in w]
            length = norm(v) + 1e-12
            moved = [x - self.rho * a / length for x, a in zip(w, v)]
            return gradient(moved, batch, loss)
        g = gradient(w, batch, loss)
        if self.method == "look_sam":
            return self.look(w, g, batch, loss)
        moved = [x + e for x, e in zip(w, self.epsilon(w, g))]
        g_p = gradient(moved, batch, loss)
        if self.method != "gsam":
            return g_p
        part = dot(g, g_p) / dot(g_p, g_p)
        orthogonal = [a - part * b for a, b in zip(g, g_p)]
        return [b - self.options["alpha"] * o for b, o in zip(g_p, orthogonal)]

    def look(self, w, g, batch, loss):
        is_full = self.steps % self.options["k"] == 0
        self.steps += 1
        if not is_full:
            length = self.options["alpha"] * norm(g) / norm(self.orthogonal)
            return [x + length * v for x, v in zip(g, self.orthogonal)]
        moved = [x + self.rho * e / (norm(g) + 1e-12) for x, e in zip(w, g)]
        g_s = gradient(moved, batch, loss)
        cosine = dot(g, g_s) / (norm(g) * norm(g_s))
        along = norm(g_s) * cosine / norm(g)
        self.orthogonal = [b - along * a for a, b in zip(g, g_s)]
        return g_s


class NaiveBase:
    """SGD with momentum, Adam and AdamW by their textbook formulas."""

    def __init__(self, kind, lr, weight_decay=0.0, momentum=0.0):
        self.kind, self.lr, self.decay, self.mu = kind, lr, weight_decay, momentum
        self.m = self.v = None
        self.t = 0

    def update(self, w, g):
        self.t += 1
        if self.kind != "adamw":
            g = [x + self.decay * p for x, p in zip(g, w)]
        zeros = [torch.zeros_like(x) for x in g]
        if self.kind == "sgd":
            self.m = [self.mu * a + x for a, x in zip(self.m or zeros, g)]
            return [p - self.lr * a for p, a in zip(w, self.m)]
        if self.kind == "adamw":
            w = [p * (1 - self.lr * self.decay) for p in w]
        self.m = [0.9 * a + 0.1 * x for a, x in zip(self.m or zeros, g)]
        self.v = [0.999 * a + 0.001 * x * x for a, x in zip(self.v or zeros, g)]
        c1, c2 = 1 - 0.9**self.t, 1 - 0.999**self.t
        return [
            p - self.lr * (a / c1) / ((b / c2).sqrt() + 1e-8)
            for p, a, b in zip(w, self.m, self.v)
        ]


def naive_run(method, base, start, batches, rho=0.1):
    """Return the weights after one step on each batch."""
    sam = NaiveSAM(method, rho, **OPTIONS[method])
    base = NaiveBase(base, **BASES[base][1])
    w = start
    for batch in batches:
        w = base.update(w, sam.direction(w, batch, momentum=base.m))
    return w


def over_sgd(method, params, **options):
    """Return the optimizer over SGD, with a momentum if the method needs one."""
    if method == "momentum_sam":
        options = {"momentum": 0.9, **options}
    return OPTIMIZERS[method](params, **options)


def perturb(optimizer, backward, **options):
    """Make the pass at the perturbed weights, or what the method does instead."""
    if optimizer.perturbs:
        with optimizer.perturbed(**options):
            backward()
    else:
        optimizer.reuse()


def new(start):
    """Return new parameters with values ``start``."""
    return [torch.nn.Parameter(w.detach().clone()) for w in start]


def make(method, base, start, rho=0.1, **more):
    """Return new parameters with values ``start``, and the library's optimizer."""
    params = new(start)
    cls, kwargs = BASES[base]
    options = {**OPTIONS[method], **kwargs, **more}
    return params, OPTIMIZERS[method](params, cls, rho, **options)


def train(params, optimizer, batches, loss=loss_of):
    """Make one ``step(closure)`` on each batch."""
    for batch in batches:
        optimizer.step(closure_of(optimizer, lambda b=batch: loss(params, b)))


def closure_of(optimizer, loss, losses=None):
    """Return a closure for ``step``, which appends each loss to ``losses``."""

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        if losses is not None:
            losses.append(value.item())
        return value

    return closure


def plain_steps(params, optimizer, batches, loss=loss_of):
    """Make a step of one pass on each batch, by any optimizer of torch."""
    for batch in batches:
        closure_of(optimizer, lambda b=batch: loss(params, b))()
        optimizer.step()


def same(left, right):
    """Return whether lists of tensors are equal bit for bit, with signs of zeros."""
    return len(left) == len(right) and all(
        torch.equal(a, b) and torch.equal(torch.signbit(a), torch.signbit(b))
        for a, b in zip(left, right)
    )

"""Functions of `tf.compat.v1` on small data, written for TensorFlow and for thalweg alike.

`python tools/record_tf1_names.py tests/goldens/tf1_names.json` has TensorFlow's numbers.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np


def draw(*shape: int, seed: int, positive: bool = False) -> Any:
    """Return normal numbers."""
    numbers = np.asarray(np.random.RandomState(seed).randn(*shape)).astype("f4")
    return np.abs(numbers) if positive else numbers


class Case:
    """One graph that is being built, and what is fed to it."""

    def __init__(self, tf: Any) -> None:
        self.tf = tf
        self.feeds: dict[Any, Any] = {}
        self.sources: list[Any] = []

    def fed(self, value: Any, shape: Any = None, grad: bool = True) -> Any:
        """Return a placeholder; the gradient of floats is asked for."""
        value = np.asarray(value)
        symbol = self.tf.placeholder(value.dtype.name, value.shape if shape is None else shape)
        self.feeds[symbol] = value
        if grad and value.dtype.kind == "f":
            self.sources.append(symbol)
        return symbol


Maker = Callable[[Case], dict[str, Any]]
CASES: dict[str, Maker] = {}


def row(name: str, make: Callable[..., Any]) -> None:
    """Return a case of which the result is one tensor, or a dict."""

    def made(case: Case) -> dict[str, Any]:
        output = make(case)
        return output if isinstance(output, dict) else {"y": output}

    CASES[name] = made


IMAGES = draw(2, 7, 6, 3, seed=1)
SEQUENCES = draw(2, 9, 3, seed=2)
ROWS = draw(4, 5, seed=3)
TALL = [None, 7, 6, 3]
A, B = draw(3, 4, seed=11), draw(3, 4, seed=12)
SHARES = (1 / (1 + np.exp(-draw(3, 4, seed=13)))).astype("f4")
BITS = (draw(3, 4, seed=14) > 0).astype("f4")
TIES = np.array([[1, 3, 2, 3], [5, 5, 5, 5], [0, -1, 4, 4]], "f4")


def _layers() -> None:
    for title, options in {
        "dense": {},
        "dense relu": {"activation": "relu"},
        "dense without bias": {"use_bias": False},
    }.items():
        row(title, lambda c, o=options: c.tf.layers.dense(c.fed(ROWS, [None, 5]), 3, **o))
    row("dense of sequences", lambda c: c.tf.layers.dense(c.fed(SEQUENCES, [None, None, 3]), 4))
    row("flatten", lambda c: c.tf.layers.flatten(c.fed(IMAGES, TALL)))
    row("dropout outside of training", lambda c: c.tf.layers.dropout(c.fed(ROWS), 0.5))
    for padding in ("same", "valid"):
        for kernel, stride in ((3, 1), (3, 2), ((2, 4), (2, 1)), (2, 3), (1, 2)):
            size = (kernel, stride, padding)
            end = f"{kernel} by {stride} {padding}"
            for title in ("conv2d", "conv2d_transpose"):
                row(
                    f"{title} {end}",
                    lambda c, t=title, h=size: getattr(c.tf.layers, t)(c.fed(IMAGES, TALL), 4, *h),
                )
            for title in ("max_pooling2d", "average_pooling2d"):
                row(
                    f"{title} {end}",
                    lambda c, t=title, h=size: getattr(c.tf.layers, t)(c.fed(IMAGES, TALL), *h),
                )
        row(
            f"conv2d dilated {padding}",
            lambda c, p=padding: c.tf.layers.conv2d(
                c.fed(IMAGES, TALL), 4, 3, padding=p, dilation_rate=2
            ),
        )
        row(
            f"conv2d of unknown sizes {padding}",
            lambda c, p=padding: c.tf.layers.conv2d(
                c.fed(IMAGES, [None, None, None, 3]), 4, 3, 2, p
            ),
        )
        for kernel, stride in ((3, 2), (4, 3)):
            size = (kernel, stride, padding)
            row(
                f"conv1d {kernel} by {stride} {padding}",
                lambda c, h=size: c.tf.layers.conv1d(c.fed(SEQUENCES), 4, *h),
            )
            for title in ("max_pooling1d", "average_pooling1d"):
                row(
                    f"{title} {kernel} by {stride} {padding}",
                    lambda c, t=title, h=size: getattr(c.tf.layers, t)(c.fed(SEQUENCES), *h),
                )


def _normalized(case: Case, data: Any, shape: Any, training: Any, **options: Any) -> Any:
    if isinstance(training, str):
        training = case.fed(np.array(training == "fed True"), [])
    y = case.tf.layers.batch_normalization(case.fed(data, shape), training=training, **options)
    return {"y": y, "updates": case.tf.get_collection(case.tf.GraphKeys.UPDATE_OPS)}


def _normalizations() -> None:
    inputs = {
        "images": (IMAGES, TALL, {}),
        "images, not fused": (IMAGES, TALL, {"fused": False}),
        "rows": (ROWS, [None, 5], {"momentum": 0.9}),
        "sequences": (SEQUENCES, [None, None, 3], {"scale": False, "epsilon": 1e-5}),
    }
    for (title, (data, shape, options)), training in itertools.product(
        inputs.items(), (True, False, "fed True", "fed False")
    ):
        row(
            f"batch_normalization of {title}, {training}",
            lambda c, d=data, s=shape, t=training, o=options: _normalized(c, d, s, t, **o),
        )
    row(
        "batch_normalization that is not trained",
        lambda c: _normalized(c, ROWS, [None, 5], True, trainable=False),
    )
    row(
        "batch_normalization of one row",
        lambda c: _normalized(c, ROWS[:1], [None, 5], True),
    )
    row(
        "batch_normalization of one point",
        lambda c: _normalized(c, IMAGES[:1, :1, :1], [None, 1, 1, 3], True),
    )


def _names(case: Case) -> Any:
    """Return variables of layers and scopes that are opened again."""
    tf = case.tf
    dense = tf.layers.dense
    rows, images = tf.constant(ROWS), tf.constant(IMAGES)
    y = dense(dense(dense(rows, 3), 3), 2, name="out")
    with tf.variable_scope("net"):
        y = tf.layers.batch_normalization(dense(dense(y, 3), 3))
        tf.layers.max_pooling2d(
            tf.layers.conv2d_transpose(tf.layers.conv2d(images, 2, 3), 2, 3), 2, 2
        )
    y = dense(y, 2, name="between")
    with tf.variable_scope("net", reuse=True):
        y = dense(dense(y, 3), 3)
    y = dense(y, 2, name="behind")
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        y = dense(dense(dense(y, 3), 3), 3)
    y = dense(dense(y, 3, name="twice"), 3, name="twice", reuse=True)
    layer = tf.layers.Dense(3)
    y = layer(layer(y))
    y = tf.layers.Dense(2, name="object")(y)
    y = tf.layers.Dense(2, name="object")(y)
    with tf.variable_scope("a"):
        with tf.variable_scope("b") as scope:
            tf.get_variable("v", [2])
        with tf.variable_scope(None, default_name="b"):
            tf.get_variable("v", [2])
        with tf.variable_scope(scope):
            for _ in range(2):
                with tf.variable_scope(None, default_name="c"):
                    tf.get_variable("v", [2])
    with tf.variable_scope("a"):
        for _ in range(2):
            with tf.variable_scope(None, default_name="b"):
                tf.get_variable("w", [2])
    return y * 1e-3


def _penalties(case: Case) -> dict[str, Any]:
    tf = case.tf

    def squares(weights: Any) -> Any:
        return 0.1 * tf.reduce_sum(tf.square(weights))

    rows = case.fed(ROWS, [None, 5])
    with tf.variable_scope("n", regularizer=lambda w: 0.5 * tf.reduce_sum(w)):
        y = tf.layers.dense(rows, 5, kernel_regularizer=squares, name="a")
    options = {"bias_regularizer": squares, "activity_regularizer": squares, "name": "b"}
    y = tf.layers.dense(y, 5, **options)
    y = tf.layers.dense(y, 5, kernel_regularizer=squares, name="b", reuse=True)
    losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    total = tf.losses.get_regularization_loss()
    return {"y": y, **{str(i): loss for i, loss in enumerate(losses)}, "total": total}


WEIGHTS = {
    "1": 1.0,
    "2": 2.0,
    "0": 0.0,
    "of rows": np.array([[1.0], [0.0], [3.0]], "f4"),
    "of all": draw(3, 4, seed=15, positive=True) * (draw(3, 4, seed=16) > 0),
}
REDUCTIONS = ("none", "weighted_sum", "weighted_mean", "weighted_sum_over_batch_size")
CLASSES = np.array([1, 0, 3])
OF_ROWS = np.array([1.0, 0.0, 2.0], "f4")


def _losses() -> None:
    for reduction, (title, weights) in itertools.product(REDUCTIONS, WEIGHTS.items()):
        row(
            f"mean_squared_error, {reduction}, weights {title}",
            lambda c, r=reduction, w=weights: c.tf.losses.mean_squared_error(
                c.fed(A), c.fed(B), w, reduction=r
            ),
        )
    tables: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "mean_squared_error": (A, B, {}),
        "absolute_difference": (A, B, {}),
        "huber_loss": (A, B, {"delta": 0.7}),
        "hinge_loss": (BITS, B, {}),
        "log_loss": (BITS, SHARES, {}),
        "sigmoid_cross_entropy": (BITS, B, {}),
        "sigmoid_cross_entropy smooth": (BITS, B, {"label_smoothing": 0.1}),
    }
    for (title, (labels, predictions, options)), weights in itertools.product(
        tables.items(), ("1", "of all")
    ):
        loss = title.partition(" ")[0]
        row(
            f"{title}, weights {weights}",
            lambda c, t=loss, x=labels, y=predictions, w=WEIGHTS[weights], o=options: getattr(
                c.tf.losses, t
            )(c.fed(x), c.fed(y), w, **o),
        )
    one_hot = np.eye(4, dtype="f4")[CLASSES]
    for smoothing in (0, 0.2):
        row(
            f"softmax_cross_entropy, smooth by {smoothing}",
            lambda c, s=smoothing: c.tf.losses.softmax_cross_entropy(
                c.fed(one_hot, grad=False), c.fed(B), OF_ROWS, label_smoothing=s
            ),
        )
    row(
        "softmax_cross_entropy of integers",
        lambda c: c.tf.losses.softmax_cross_entropy(c.fed(one_hot.astype("i4")), c.fed(B)),
    )
    row(
        "sparse_softmax_cross_entropy",
        lambda c: c.tf.losses.sparse_softmax_cross_entropy(c.fed(CLASSES), c.fed(B), OF_ROWS),
    )
    row(
        "sparse_softmax_cross_entropy of columns",
        lambda c: c.tf.losses.sparse_softmax_cross_entropy(
            c.fed(CLASSES[:, None]), c.fed(B), OF_ROWS[:, None]
        ),
    )
    row(
        "cosine_distance",
        lambda c: c.tf.losses.cosine_distance(c.fed(A), c.fed(B), 1, OF_ROWS[:, None]),
    )


def _total(case: Case) -> Any:
    losses = case.tf.losses
    first = losses.mean_squared_error(case.fed(A), case.fed(B))
    losses.huber_loss(case.fed(A), case.fed(B), scope="h")
    losses.add_loss(first * 2.0)
    assert len(losses.get_losses()) == 3
    assert len(losses.get_losses(scope="h")) == 1
    return losses.get_total_loss()


def _nn() -> None:
    filters, sequence_filters = draw(3, 2, 3, 4, seed=20), draw(3, 3, 4, seed=19)
    points = draw(1, 1, 12, 2, seed=21)
    for p in ("SAME", "VALID"):
        rows: dict[str, Callable[[Case], Any]] = {
            "conv2d": lambda c, p=p: c.tf.nn.conv2d(c.fed(IMAGES), c.fed(filters), [1, 2, 2, 1], p),
            "atrous_conv2d": lambda c, p=p: c.tf.nn.atrous_conv2d(
                c.fed(IMAGES), c.fed(filters), 2, p
            ),
            "conv1d": lambda c, p=p: c.tf.nn.conv1d(
                c.fed(SEQUENCES), c.fed(sequence_filters), 2, p
            ),
            "depthwise_conv2d": lambda c, p=p: c.tf.nn.depthwise_conv2d(
                c.fed(IMAGES), c.fed(filters), [1, 2, 2, 1], p
            ),
            "separable_conv2d": lambda c, p=p: c.tf.nn.separable_conv2d(
                c.fed(IMAGES), c.fed(filters), c.fed(points), [1, 1, 1, 1], p
            ),
            "max_pool": lambda c, p=p: c.tf.nn.max_pool(
                c.fed(IMAGES), [1, 3, 2, 1], [1, 2, 2, 1], p
            ),
            "max_pool of equal ones": lambda c, p=p: c.tf.nn.max_pool(
                c.fed(np.round(IMAGES)), [1, 3, 3, 1], [1, 2, 2, 1], p
            ),
            "avg_pool": lambda c, p=p: c.tf.nn.avg_pool(
                c.fed(IMAGES), [1, 3, 2, 1], [1, 2, 2, 1], p
            ),
        }
        for title, make in rows.items():
            row(f"nn.{title} {p}", make)
    for height, width in ((13, 12), (14, 11)):
        row(
            f"nn.conv2d_transpose to {height} {width}",
            lambda c, h=height, w=width: c.tf.nn.conv2d_transpose(
                c.fed(IMAGES), c.fed(draw(3, 2, 2, 3, seed=22)), [2, h, w, 2], [1, 2, 2, 1]
            ),
        )
    row("nn.conv2d_transpose of any batch", _spread)
    of_channels = [draw(3, seed=23), draw(3, seed=24, positive=True), draw(3, seed=25)]
    of_channels.append(draw(3, seed=26))

    def channels(case: Case, count: int) -> list[Any]:
        return [case.fed(array) for array in of_channels[:count]]

    row("nn.moments", lambda c: dict(zip("mv", c.tf.nn.moments(c.fed(IMAGES), [0, 1, 2]))))
    row(
        "nn.moments kept",
        lambda c: dict(zip("mv", c.tf.nn.moments(c.fed(IMAGES), [1], keep_dims=True))),
    )
    row(
        "nn.batch_normalization",
        lambda c: c.tf.nn.batch_normalization(c.fed(IMAGES), *channels(c, 4), 1e-3),
    )
    row(
        "nn.batch_normalization without scale",
        lambda c: c.tf.nn.batch_normalization(c.fed(IMAGES), *channels(c, 2), None, None, 1e-3),
    )
    row(
        "nn.batch_norm_with_global_normalization",
        lambda c: c.tf.nn.batch_norm_with_global_normalization(
            c.fed(IMAGES), *channels(c, 4), 1e-3, False
        ),
    )
    row(
        "nn.fused_batch_norm",
        lambda c: dict(zip("ymv", c.tf.nn.fused_batch_norm(c.fed(IMAGES), *channels(c, 2)))),
    )
    row(
        "nn.fused_batch_norm outside of training",
        lambda c: c.tf.nn.fused_batch_norm(
            c.fed(IMAGES), c.fed(of_channels[0]), c.fed(of_channels[2]),
            tuple(of_channels[3].tolist()), tuple(of_channels[1].tolist()), is_training=False,
        )[0],
    )  # fmt: skip
    row(
        "nn.lrn",
        lambda c: c.tf.nn.lrn(c.fed(draw(2, 3, 3, 9, seed=27)), 2, bias=1.5, alpha=0.3, beta=0.75),
    )
    row(
        "nn.local_response_normalization",
        lambda c: c.tf.nn.local_response_normalization(c.fed(IMAGES)),
    )
    row("nn.top_k", lambda c: dict(zip("vi", c.tf.nn.top_k(c.fed(TIES), 3))))
    for k, targets in ((2, [0, 3, 1]), (1, [1, 3, 3])):
        row(
            f"nn.in_top_k of {k}",
            lambda c, k=k, t=targets: c.tf.cast(
                c.tf.nn.in_top_k(c.fed(TIES, grad=False), c.fed(np.array(t)), k), "int32"
            ),
        )
    for title in ("relu6", "elu", "selu", "softplus", "softsign", "log_softmax", "crelu"):
        row(f"nn.{title}", lambda c, t=title: getattr(c.tf.nn, t)(c.fed(5 * A)))
    row("nn.leaky_relu", lambda c: c.tf.nn.leaky_relu(c.fed(A)))
    row("nn.zero_fraction", lambda c: c.tf.nn.zero_fraction(c.fed(BITS, grad=False)))
    row(
        "nn.xw_plus_b",
        lambda c: c.tf.nn.xw_plus_b(
            c.fed(ROWS), c.fed(draw(5, 2, seed=28)), c.fed(draw(2, seed=29))
        ),
    )
    row("nn.l2_normalize", lambda c: c.tf.nn.l2_normalize(c.fed(A), dim=1))
    row(
        "nn.weighted_cross_entropy_with_logits",
        lambda c: c.tf.nn.weighted_cross_entropy_with_logits(
            labels=c.fed(BITS, grad=False), logits=c.fed(B), pos_weight=2.5
        ),
    )
    for loss, count, hits in itertools.product(
        ("nce_loss", "sampled_softmax_loss"), (1, 2), (False, True)
    ):
        row(
            f"nn.{loss}, {count} true, hits {'removed' if hits else 'kept'}",
            lambda c, t=loss, n=count, h=hits: _sampled(c, t, n, h),
        )


def _spread(case: Case) -> Any:
    images = case.fed(IMAGES, TALL)
    shape = [case.tf.shape(images)[0], 14, 12, 2]
    filters = case.fed(draw(5, 5, 2, 3, seed=22))
    return case.tf.nn.conv2d_transpose(images, filters, shape, [1, 2, 2, 1])


def _sampled(case: Case, loss: str, count: int, hits: bool) -> Any:
    weights, biases = case.fed(draw(10, 4, seed=30)), case.fed(draw(10, seed=31))
    inputs = case.fed(draw(3, 4, seed=32))
    labels = case.fed(np.array([[1, 7], [2, 3], [9, 0]])[:, :count])
    sampled = (
        case.fed(np.array([2, 5, 7, 3])),
        case.fed(draw(3, count, seed=33, positive=True), grad=False),
        case.fed(draw(4, seed=34, positive=True), grad=False),
    )
    return getattr(case.tf.nn, loss)(
        weights, biases, labels, inputs, 4, 10, count, sampled, remove_accidental_hits=hits
    )


YES = np.array([1, 1, 0, 0, 1], bool)
GUESS = np.array([1, 0, 1, 0, 1], bool)
SURE = np.array([0.9, 0.3, 0.4, 0.1, 0.8], "f4")


def _metrics() -> None:
    tables: dict[str, tuple[Any, Any, list[Any]]] = {
        "accuracy": (np.array([1, 2, 0, 1]), np.array([1, 0, 0, 1]), [None]),
        "mean_squared_error": (A, B, [None, WEIGHTS["of rows"]]),
        "root_mean_squared_error": (A, B, [None]),
        "mean_absolute_error": (A, B, [None]),
        **{
            title: (YES, GUESS, [None, np.array([1, 2, 0.5, 0, 1], "f4")])
            for title in ("precision", "recall", "true_positives", "false_positives")
        },
        "false_negatives": (YES, GUESS, [None]),
        "true_negatives": (YES, GUESS, [None]),
        "auc": (YES, SURE, [None, np.array([1, 2, 0.5, 0, 1], "f4")]),
    }
    for title, (labels, predictions, weightings) in tables.items():
        for weights in weightings:
            row(
                f"metrics.{title}{'' if weights is None else ', weighted'}",
                lambda c, t=title, x=labels, y=predictions, w=weights: {
                    "metric": getattr(c.tf.metrics, t)(
                        c.fed(x, grad=False), c.fed(y, grad=False), weights=w
                    )
                },
            )
    for curve, method in itertools.product(("ROC", "PR"), ("trapezoidal", "minoring", "majoring")):
        row(
            f"metrics.auc {curve} {method}",
            lambda c, m=method, r=curve: {
                "metric": c.tf.metrics.auc(
                    c.fed(YES), c.fed(SURE, grad=False), num_thresholds=11, curve=r,
                    summation_method=m,
                )
            },
        )  # fmt: skip
    row(
        "metrics.mean",
        lambda c: {"metric": c.tf.metrics.mean(c.fed(A, grad=False), WEIGHTS["of rows"])},
    )


def _summaries() -> None:
    numbers = np.concatenate([draw(50, seed=40), [0, 0, 1e-13, 1e30]]).astype("f4")
    tables: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "scalar": ("lo ss:0", np.float32(2.5), {}),
        "scalar of a family": ("loss", np.float32(2.5), {"family": "fam"}),
        "histogram": ("h", numbers, {}),
        "histogram of zeros": ("h", np.zeros(3, "f4"), {}),
        "histogram of nothing": ("h", np.zeros(0, "f4"), {}),
        "image": ("im", draw(4, 5, 6, 3, seed=41), {}),
        "image without colors": (
            "im",
            draw(4, 5, 6, 1, seed=41, positive=True),
            {"max_outputs": 1},
        ),
        "image of bytes": (
            "im",
            (draw(2, 5, 6, 4, seed=41, positive=True) * 60).astype("u1"),
            {},
        ),
    }
    for title, (tag, value, options) in tables.items():
        kind = title.partition(" ")[0]
        row(
            f"summary.{title}",
            lambda c, k=kind, t=tag, v=value, o=options: _summary(c, k, t, v, o),
        )


def _summary(case: Case, kind: str, tag: str, value: Any, options: dict[str, Any]) -> Any:
    with case.tf.name_scope("scope"):
        for _ in range(2):
            getattr(case.tf.summary, kind)(tag, case.fed(value, grad=False), **options)
    return {"summary": case.tf.summary.merge_all()}


_layers()
_normalizations()
row("names", _names)
row("penalties", _penalties)
_losses()
row("losses.get_total_loss", _total)
_nn()
_metrics()
_summaries()

Pixels = Callable[[bytes], Any]


def measured(tf: Any, name: str, message: Any, pixels: Pixels) -> dict[str, Any]:
    """Return the outputs, gradients and variables that a library computes for a case.

    Args:
        tf: `tf.compat.v1`, in graph mode.
        name: Of the case.
        message: The class of summaries.
        pixels: Decodes a PNG.

    Returns:
        The names of variables, "*" for those that are trained, and arrays by name.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        case = Case(tf)
        outputs = CASES[name](case)
        updates, metric = outputs.pop("updates", None), outputs.pop("metric", None)
        variables = tf.global_variables()
        trained = tf.trainable_variables()
        stars = ["*" if any(var is x for x in trained) else "" for var in variables]
        titles = [f"{var.name}{star}" for var, star in zip(variables, stars)]
        outputs_by_name: dict[str, Any] = {
            "variables": [*titles, *(var.name for var in tf.local_variables())]
        }
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for variable in variables:
            title = variable.name.partition(":")[0]
            seed = zlib.crc32(title.encode()) % 1000
            value = draw(*map(int, variable.shape), seed=seed, positive="variance" in title)
            variable.load(value + 0.5 * ("variance" in title), session)
        if metric is not None:
            value, update = metric
            for step in ("first", "second"):
                outputs_by_name[step] = session.run(update, case.feeds)
            return {**outputs_by_name, "value": session.run(value)}
        if "summary" in outputs:
            serialized = session.run(outputs["summary"], case.feeds)
            return {**outputs_by_name, **_of_summary(message.FromString(serialized), pixels)}
        outputs |= _gradients(case, outputs, trained, session)
        outputs_by_name |= session.run(outputs, case.feeds)
        if updates is not None:
            outputs_by_name["updates"] = np.array(len(updates))
            session.run(updates, case.feeds)
            outputs_by_name |= {f"then {x.name}": x.eval(session=session) for x in variables}
        return outputs_by_name


def _gradients(
    case: Case, outputs: dict[str, Any], trained: list[Any], session: Any
) -> dict[str, Any]:
    """Return the gradients of the weighted first tensor by all that is fed and
    trained.
    """
    first = next(iter(outputs.values()))
    sources = [*case.sources, *trained]
    if first.dtype not in (case.tf.float32, "float32") or not sources:
        return {}
    shape = np.shape(session.run(first, case.feeds))
    weights = np.cos(1 + np.arange(np.prod(shape, dtype=int))).reshape(shape).astype("f4")
    gradients = case.tf.gradients(case.tf.reduce_sum(first * weights), sources)
    return {
        f"gradient {i}": case.tf.convert_to_tensor(grad)
        for i, grad in enumerate(gradients)
        if grad is not None
    }


def _of_summary(summary: Any, pixels: Pixels) -> dict[str, Any]:
    contents: dict[str, Any] = {"tags": [value.tag for value in summary.value]}
    for index, value in enumerate(summary.value):
        if value.HasField("image"):
            contents[f"image {index}"] = pixels(value.image.encoded_image_string)
        elif value.HasField("histo"):
            histo = value.histo
            numbers = [histo.min, histo.max, histo.num, histo.sum, histo.sum_squares]
            contents[f"numbers {index}"] = np.array(numbers)
            contents[f"limits {index}"] = np.array(histo.bucket_limit)
            contents[f"buckets {index}"] = np.array(histo.bucket)
        else:
            contents[f"value {index}"] = np.array(value.simple_value)
    return contents


def told(values: dict[str, Any]) -> dict[str, Any]:
    """Reduce each array to its shape, its norm, and a sum with changing weights."""
    return {key: y if isinstance(y, list) else _short(y) for key, y in values.items()}


def _short(value: Any) -> list[Any]:
    flat = np.asarray(value, "f8").ravel()
    flat = np.clip(flat, -1e30, 1e30)
    weights = np.cos(1 + np.arange(flat.size))
    numbers = [float(np.sqrt(flat @ flat)), float(flat @ weights)]
    return [list(np.shape(value)), *(float(f"{x:.7g}") for x in numbers)]

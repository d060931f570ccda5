"""Optimizers as people write them for TensorFlow: subclasses of OptimizerV2 over `tf` alone.

Each is one of TensorFlow Addons' by its numbers, and uses hooks of its own kind: coefficients in
`_prepare_local` or read in the hook, slots of other shapes, kernels, rows that are scattered,
optimizers in optimizers.
"""

from __future__ import annotations

from typing import Any

import thalweg.tf as tf

Base = tf.keras.optimizers.legacy.Optimizer
Adam, SGD = tf.keras.optimizers.legacy.Adam, tf.keras.optimizers.legacy.SGD


class Written(Base):
    """Hyperparameters by keyword, and coefficients of a step under their names."""

    HYPERS: dict[str, float] = {}
    SLOTS: tuple[str, ...] = ()

    def __init__(self, learning_rate: Any = 0.001, name: Any = None, **kwargs: Any) -> None:
        hypers = {key: kwargs.pop(key, value) for key, value in self.HYPERS.items()}
        super().__init__(name or type(self).__name__, **kwargs)
        self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
        for key, value in hypers.items():
            self._set_hyper(key, value)

    def _create_slots(self, var_list: Any) -> None:
        for slot in self.SLOTS:
            for var in var_list:
                self.add_slot(var, slot)

    def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        coefficients = {key: tf.identity(self._get_hyper(key, var_dtype)) for key in self.HYPERS}
        apply_state[(var_device, var_dtype)].update(coefficients)

    def _coefficients_of(self, var: Any, apply_state: Any) -> Any:
        key = var.device, var.dtype.base_dtype
        return (apply_state or {}).get(key) or self._fallback_apply_state(*key)

    def _powers(self, dtype: Any) -> Any:
        step = tf.cast(self.iterations + 1, dtype)
        betas = self._get_hyper("beta_1", dtype), self._get_hyper("beta_2", dtype)
        return (step, *betas, *(tf.pow(beta, step) for beta in betas))


class CoinBetting(Base):
    """COCOB. Its hooks call their variable `handle`."""

    def __init__(self, alpha: float = 100, name: str = "CoinBetting", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._alpha = alpha

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "lr", initializer=tf.keras.initializers.Constant(1e-8))
            for slot in ("grad_norm_sum", "gradients_sum", "tilde_w", "reward"):
                self.add_slot(var, slot)

    def _resource_apply_dense(self, grad: Any, handle: Any, apply_state: Any = None) -> Any:
        slot = {name: self.get_slot(handle, name) for name in self.get_slot_names()}
        bound = tf.maximum(slot["lr"], tf.abs(grad))
        total = slot["gradients_sum"] + grad
        norms = slot["grad_norm_sum"] + tf.abs(grad)
        reward = tf.maximum(slot["reward"] - grad * slot["tilde_w"], 0)
        largest = tf.maximum(norms + bound, self._alpha * bound)
        bet = -total / (bound * largest) * (reward + bound)
        return tf.group(
            handle.assign(handle - slot["tilde_w"] + bet),
            slot["gradients_sum"].assign(total),
            slot["grad_norm_sum"].assign(norms),
            slot["tilde_w"].assign(bet),
            slot["lr"].assign(bound),
            slot["reward"].assign(reward),
        )


class FrankWolfe(Written):
    """Conditional gradient under a bound of the Frobenius or the nuclear norm."""

    HYPERS = {"lambda_": 0.01}
    SLOTS = ("conditional_gradient",)

    def __init__(self, learning_rate: Any, ord: str = "fro", **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self._ord = ord

    def _direction(self, grad: Any, dtype: Any) -> Any:
        if self._ord == "fro":
            norm = tf.convert_to_tensor(tf.reduce_sum(grad**2) ** 0.5, dtype=dtype)
            return grad / (norm + tf.convert_to_tensor(1e-7, dtype))
        matrix = grad if grad.shape.ndims == 2 else tf.reshape(grad, [1, -1])
        _, u, v = tf.linalg.svd(matrix, full_matrices=False)
        return tf.reshape(tf.matmul(u[:, :1], tf.transpose(v[:, :1])), grad.get_shape().as_list())

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        hypers = self._coefficients_of(var, apply_state)
        rate = hypers["lr_t"]
        shift = (1 - rate) * hypers["lambda_"] * self._direction(grad, var.dtype.base_dtype)
        return var.assign(tf.math.multiply(var, rate) - shift, use_locking=self._use_locking)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        hypers = self._coefficients_of(var, apply_state)
        rate = hypers["lr_t"]
        shift = (1 - rate) * hypers["lambda_"] * self._direction(grad, var.dtype.base_dtype)
        rows = tf.math.multiply(tf.gather(var, indices), rate) - shift
        return self._resource_scatter_update(var, indices, rows)


class LayerAdaptive(Written):
    """LAMB."""

    HYPERS = {"beta_1": 0.9, "beta_2": 0.999, "weight_decay": 0.0}
    SLOTS = ("m", "v")

    def __init__(self, learning_rate: Any, exclude: Any = (), **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self._exclude = exclude

    def _moved(self, m: Any, v: Any, var: Any, apply_state: Any) -> Any:
        hypers = self._coefficients_of(var, apply_state)
        _, _, _, power_1, power_2 = self._powers(var.dtype.base_dtype)
        epsilon = tf.convert_to_tensor(1e-6, var.dtype.base_dtype)
        update = (m / (1.0 - power_1)) / (tf.sqrt(v / (1.0 - power_2)) + epsilon)
        if any(part in var.name for part in self._exclude):
            return hypers["lr_t"] * update
        update += hypers["weight_decay"] * var
        norm, size = tf.norm(var, ord=2), tf.norm(update, ord=2)
        ratio = tf.where(tf.greater(norm, 0), tf.where(tf.greater(size, 0), norm / size, 1.0), 1.0)
        return ratio * hypers["lr_t"] * update

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        hypers = self._coefficients_of(var, apply_state)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_t = m.assign(m * hypers["beta_1"] + grad * (1 - hypers["beta_1"]))
        v_t = v.assign(v * hypers["beta_2"] + (grad * grad) * (1 - hypers["beta_2"]))
        return var.assign_sub(self._moved(m_t, v_t, var, apply_state), self._use_locking)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        hypers = self._coefficients_of(var, apply_state)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        with tf.control_dependencies([m.assign(m * hypers["beta_1"])]):
            m_t = self._resource_scatter_add(m, indices, grad * (1 - hypers["beta_1"]))
        with tf.control_dependencies([v.assign(v * hypers["beta_2"])]):
            v_t = self._resource_scatter_add(v, indices, (grad * grad) * (1 - hypers["beta_2"]))
        return var.assign_sub(self._moved(m_t, v_t, var, apply_state), self._use_locking)


class Lazy(Adam):
    """Adam whose moments of rows without a gradient stay; hooks without `apply_state`."""

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        dtype = var.dtype.base_dtype
        beta_1, beta_2 = self._get_hyper("beta_1", dtype), self._get_hyper("beta_2", dtype)
        step = tf.cast(self.iterations + 1, dtype)
        root = tf.math.sqrt(1 - tf.math.pow(beta_2, step))
        rate = self._decayed_lr(dtype) * root / (1 - tf.math.pow(beta_1, step))
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_t = beta_1 * tf.gather(m, indices) + (1 - beta_1) * grad
        v_t = beta_2 * tf.gather(v, indices) + (1 - beta_2) * tf.math.square(grad)
        move = rate * m_t / (tf.math.sqrt(v_t) + tf.convert_to_tensor(self.epsilon, dtype))
        slot_updates = [
            tf.raw_ops.ResourceScatterUpdate(
                resource=resource.handle, indices=indices, updates=rows
            )
            for resource, rows in ((m, m_t), (v, v_t))
        ]
        update = tf.raw_ops.ResourceScatterSub(resource=var.handle, indices=indices, updates=move)
        return tf.group(update, *slot_updates)


class NormalizedLayers(Written):
    """NovoGrad: a second moment of shape () for each variable, and branches by `tf.cond`."""

    HYPERS = {"beta_1": 0.9, "beta_2": 0.999, "weight_decay": 0.0}

    def __init__(
        self,
        learning_rate: Any,
        grad_averaging: bool = False,
        amsgrad: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self._set_hyper("grad_averaging", grad_averaging)
        self._amsgrad = amsgrad

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var=var, slot_name="m", initializer="zeros")
        for var in var_list:
            self.add_slot(var, "v", initializer=tf.zeros(shape=[], dtype=var.dtype))
            if self._amsgrad:
                self.add_slot(var, "vhat")

    def _normalized(self, grad: Any, var: Any, rows: Any, hypers: Any) -> Any:
        v, squares = self.get_slot(var, "v"), tf.reduce_sum(tf.square(grad))
        v_t = tf.cond(
            tf.equal(self.iterations, 0),
            lambda: squares,
            lambda: v * hypers["beta_2"] + squares * (1 - hypers["beta_2"]),
        )
        v_t = v.assign(v_t, use_locking=self._use_locking)
        if self._amsgrad:
            vhat = self.get_slot(var, "vhat")
            v_t = vhat.assign(tf.maximum(vhat, v_t), use_locking=self._use_locking)
        grad = grad / (tf.sqrt(v_t) + 1e-7)
        decay = self._get_hyper("weight_decay", var.dtype)
        grad = tf.cond(tf.greater(decay, 0), lambda: grad + decay * rows(), lambda: grad)
        averages = tf.logical_and(
            self._get_hyper("grad_averaging"), tf.not_equal(self.iterations, 0)
        )
        return tf.cond(averages, lambda: grad * (1 - hypers["beta_1"]), lambda: grad)

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        hypers = self._coefficients_of(var, apply_state)
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=var.handle,
            accum=self.get_slot(var, "m").handle,
            lr=hypers["lr_t"],
            grad=self._normalized(grad, var, lambda: var, hypers),
            momentum=hypers["beta_1"],
            use_locking=self._use_locking,
            use_nesterov=False,
        )

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        hypers = self._coefficients_of(var, apply_state)
        return tf.raw_ops.ResourceSparseApplyKerasMomentum(
            var=var.handle,
            accum=self.get_slot(var, "m").handle,
            lr=hypers["lr_t"],
            grad=self._normalized(grad, var, lambda: tf.gather(var, indices), hypers),
            indices=indices,
            momentum=hypers["beta_1"],
            use_locking=self._use_locking,
        )


class Proximal(Written):
    """Proximal Adagrad by its kernels."""

    HYPERS = {"l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0}

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "accumulator", tf.keras.initializers.constant(0.1))

    def _arguments_of(self, grad: Any, var: Any, apply_state: Any) -> dict[str, Any]:
        hypers = self._coefficients_of(var, apply_state)
        return {
            "var": var.handle,
            "accum": self.get_slot(var, "accumulator").handle,
            "lr": hypers["lr_t"],
            "l1": hypers["l1_regularization_strength"],
            "l2": hypers["l2_regularization_strength"],
            "grad": grad,
        }

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        arguments = self._arguments_of(grad, var, apply_state)
        return tf.raw_ops.ResourceApplyProximalAdagrad(**arguments)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        arguments = self._arguments_of(grad, var, apply_state)
        return tf.raw_ops.ResourceSparseApplyProximalAdagrad(indices=indices, **arguments)


class Rectified(Written):
    """RAdam; a subclass is AdaBelief. What depends on the step is computed in the hook."""

    HYPERS = {"beta_1": 0.9, "beta_2": 0.999, "weight_decay": 0.0, "min_lr": 0.0}
    EPSILON = 1e-7

    def __init__(
        self,
        learning_rate: Any,
        amsgrad: bool = False,
        rectify: bool = True,
        total_steps: int = 0,
        warmup_proportion: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self._set_hyper("total_steps", float(total_steps))
        self._set_hyper("warmup_proportion", warmup_proportion)
        self._warms_up, self._rectify, self._amsgrad = total_steps > 0, rectify, amsgrad

    def _create_slots(self, var_list: Any) -> None:
        for slot in ("m", "v", "vhat") if self._amsgrad else ("m", "v"):
            for var in var_list:
                self.add_slot(var, slot)

    def _rate(self, step: Any, dtype: Any) -> Any:
        rate = self._decayed_lr(dtype)
        if not self._warms_up:
            return rate
        total = self._get_hyper("total_steps", dtype)
        first = total * self._get_hyper("warmup_proportion", dtype)
        span = tf.maximum(total - first, 1)
        slope = (self._get_hyper("min_lr", dtype) - rate) / span
        decayed_rate = rate + slope * tf.minimum(step - first, span)
        return tf.where(step <= first, rate * (step / first), decayed_rate)

    def _seen(self, grad: Any, m_t: Any) -> Any:
        """Return the values that the second moment averages."""
        return tf.square(grad)

    def _move(self, m_t: Any, v_t: Any, var: Any) -> Any:
        dtype = var.dtype.base_dtype
        step, _, beta_2, power_1, power_2 = self._powers(dtype)
        if self._amsgrad:
            vhat = self.get_slot(var, "vhat")
            v_t = vhat.assign(tf.maximum(vhat, v_t), use_locking=self._use_locking)
        m_hat, root = self._unbiased(m_t, v_t, power_1, power_2)
        longest = 2.0 / (1.0 - beta_2) - 1.0
        length = self._length(step, power_2, longest)
        scale = root + tf.convert_to_tensor(self.EPSILON, dtype)
        if self._rectify:
            rectified = self._rectifier(length, longest) * m_hat / scale
            adapted = tf.where(length >= 5.0, rectified, m_hat)
        else:
            adapted = m_hat / scale
        if self._get_hyper("weight_decay", dtype) != 0.0:
            adapted += self._get_hyper("weight_decay", dtype) * var
        return self._rate(step, dtype) * adapted

    def _unbiased(self, m_t: Any, v_t: Any, power_1: Any, power_2: Any) -> Any:
        return m_t * (1.0 / (1.0 - power_1)), tf.sqrt(v_t * (1.0 / (1.0 - power_2)))

    def _length(self, step: Any, power_2: Any, longest: Any) -> Any:
        return longest - 2.0 * step * power_2 * (1.0 / (1.0 - power_2))

    def _rectifier(self, length: Any, longest: Any) -> Any:
        first = (length - 4.0) / (longest - 4.0) * (length - 2.0) / (longest - 2.0)
        return tf.sqrt(first * longest / length)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        _, beta_1, beta_2, _, _ = self._powers(var.dtype.base_dtype)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_t = m.assign(beta_1 * m + (1.0 - beta_1) * grad, use_locking=self._use_locking)
        v_t = v.assign(self._averaged(beta_2 * v, (1.0 - beta_2) * self._seen(grad, m_t)))
        return tf.group(var.assign_sub(self._move(m_t, v_t, var)), m_t, v_t)

    def _averaged(self, old: Any, new: Any) -> Any:
        return old + new

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        _, beta_1, beta_2, _, _ = self._powers(var.dtype.base_dtype)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        with tf.control_dependencies([m.assign(m * beta_1, use_locking=self._use_locking)]):
            m_t = self._resource_scatter_add(m, indices, grad * (1.0 - beta_1))
        new_square = self._seen(grad, tf.gather(m_t, indices)) * (1.0 - beta_2)
        with tf.control_dependencies([v.assign(v * beta_2)]):
            v_t = self._resource_scatter_add(v, indices, self._averaged(0.0, new_square))
        rows = tf.gather(-self._move(m_t, v_t, var), indices)
        return tf.group(self._resource_scatter_add(var, indices, rows), m_t, v_t)


class Believing(Rectified):
    """AdaBelief."""

    EPSILON = 1e-14

    def _seen(self, grad: Any, m_t: Any) -> Any:
        return tf.math.square(grad - m_t)

    def _averaged(self, old: Any, new: Any) -> Any:
        return old + new + tf.convert_to_tensor(self.EPSILON, new.dtype)

    def _unbiased(self, m_t: Any, v_t: Any, power_1: Any, power_2: Any) -> Any:
        return m_t / (1.0 - power_1), tf.sqrt(v_t / (1.0 - power_2))

    def _length(self, step: Any, power_2: Any, longest: Any) -> Any:
        return longest - 2.0 * step * power_2 / (1.0 - power_2)

    def _rectifier(self, length: Any, longest: Any) -> Any:
        numerator = (length - 4.0) * (length - 2.0) * longest
        return tf.sqrt(numerator / ((longest - 4.0) * (longest - 2.0) * length))


class Additive(Written):
    """Yogi, with or without momentum and an l1 penalty."""

    HYPERS = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-3, "l1": 0.0}

    def __init__(self, learning_rate: Any, start: float = 1e-6, **kwargs: Any) -> None:
        self._start, self._momentum = start, kwargs.get("beta_1", 0.9) > 0
        self._penalized = kwargs.get("l1", 0.0) > 0
        super().__init__(learning_rate, **kwargs)

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "v", tf.constant_initializer(self._start))
            if self._momentum:
                self.add_slot(var, "m")

    def _moved(self, var: Any, step: Any, v_t: Any, hypers: Any, dtype: Any) -> Any:
        _, _, _, power_1, power_2 = self._powers(dtype)
        rate = hypers["lr_t"] * tf.sqrt(1 - power_2) / (1 - power_1)
        rate = rate / (tf.sqrt(v_t) + hypers["epsilon"])
        new = var - rate * step
        if not self._penalized:
            return new
        penalty = hypers["l1"] * rate
        return tf.where(tf.abs(new) > penalty, new - tf.sign(new) * penalty, tf.zeros_like(new))

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        hypers, v = self._coefficients_of(var, apply_state), self.get_slot(var, "v")
        step, squares = grad, grad * grad
        if self._momentum:
            m = self.get_slot(var, "m")
            step = m.assign(m * hypers["beta_1"] + grad * (1 - hypers["beta_1"]))
        v_t = v.assign_add((1 - hypers["beta_2"]) * tf.sign(squares - v) * squares)
        return var.assign(self._moved(var, step, v_t, hypers, var.dtype.base_dtype))

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        hypers, v = self._coefficients_of(var, apply_state), self.get_slot(var, "v")
        step, squares = grad, grad * grad
        if self._momentum:
            m = self.get_slot(var, "m")
            m.assign(m * hypers["beta_1"], use_locking=self._use_locking)
            step = tf.gather(m, indices) + grad * (1 - hypers["beta_1"])
            self._resource_scatter_update(m, indices, step)
        rows = tf.gather(v, indices)
        rows = rows + (1 - hypers["beta_2"]) * tf.sign(squares - rows) * squares
        self._resource_scatter_update(v, indices, rows)
        new = self._moved(tf.gather(var, indices), step, rows, hypers, var.dtype.base_dtype)
        return self._resource_scatter_update(var, indices, new)


class Decayed:
    """Decoupled weight decay, before whatever optimizer it is mixed into."""

    def __init__(self, weight_decay: Any, exclude: Any = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_hyper("weight_decay", weight_decay)  # pyright: ignore
        self._exclude, self._decaying = exclude, set()

    def apply_gradients(self, grads_and_vars: Any, name: Any = None, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        decaying = [var for _, var in pairs if not any(part in var.name for part in self._exclude)]
        self._decaying = {var.ref() for var in decaying}
        return super().apply_gradients(pairs, name=name, **kwargs)  # pyright: ignore

    def _prepare_local(self, var_device: Any, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)  # pyright: ignore
        decay = self._get_hyper("weight_decay", var_dtype)  # pyright: ignore
        if isinstance(decay, tf.keras.optimizers.schedules.LearningRateSchedule):
            decay = tf.cast(decay(self.iterations), var_dtype)  # pyright: ignore
        apply_state[(var_device, var_dtype)]["wd_t"] = decay

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        ops = []
        if var.ref() in self._decaying:
            decay = apply_state[(var.device, var.dtype.base_dtype)]["wd_t"]
            ops = [var.assign_sub(decay * var, True)]
        with tf.control_dependencies(ops):
            return super()._resource_apply_dense(  # pyright: ignore
                grad, var, apply_state=apply_state
            )

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        op = tf.no_op()
        if var.ref() in self._decaying:
            decay = apply_state[(var.device, var.dtype.base_dtype)]["wd_t"]
            rows = -decay * tf.gather(var, indices)
            op = self._resource_scatter_add(var, indices, rows)  # pyright: ignore
        with tf.control_dependencies([op]):
            return super()._resource_apply_sparse(  # pyright: ignore
                grad, var, indices, apply_state=apply_state
            )


class DecayedAdam(Decayed, Adam):  # pyright: ignore
    """AdamW."""


class DecayedSGD(Decayed, SGD):  # pyright: ignore
    """SGDW."""


class Around(Base):
    """An optimizer around another, whose hooks it calls."""

    def __init__(self, optimizer: Any, name: Any = None, **kwargs: Any) -> None:
        super().__init__(name or type(self).__name__, **kwargs)
        self._optimizer = tf.keras.optimizers.get(optimizer)
        self._track_trackable(self._optimizer, "inner")

    def _create_hypers(self) -> None:
        self._optimizer._create_hypers()

    def _prepare(self, var_list: Any) -> Any:
        return self._optimizer._prepare(var_list=var_list)

    def apply_gradients(self, grads_and_vars: Any, name: Any = None, **kwargs: Any) -> Any:
        self._optimizer._iterations = self.iterations
        return super().apply_gradients(grads_and_vars, name, **kwargs)

    @property
    def weights(self) -> Any:
        return self._weights + self._optimizer.weights

    @property
    def learning_rate(self) -> Any:
        return self._optimizer._get_hyper("learning_rate")

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._optimizer._set_hyper("learning_rate", value)

    def _after(self, var: Any, apply_state: Any) -> Any:
        raise NotImplementedError

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        has_state = "apply_state" in self._optimizer._dense_apply_args
        kwargs = {"apply_state": apply_state} if has_state else {}
        op = self._optimizer._resource_apply_dense(grad, var, **kwargs)
        with tf.control_dependencies([op]):
            return tf.group(op, self._after(var, apply_state))

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        has_state = "apply_state" in self._optimizer._sparse_apply_args
        kwargs = {"apply_state": apply_state} if has_state else {}
        op = self._optimizer._resource_apply_sparse(grad, var, indices, **kwargs)
        with tf.control_dependencies([op]):
            return tf.group(op, self._after(var, apply_state))


class SlowAndFast(Around):
    """Lookahead."""

    def __init__(self, optimizer: Any, sync_period: int = 6, **kwargs: Any) -> None:
        super().__init__(optimizer, **kwargs)
        self._set_hyper("sync_period", sync_period)
        self._set_hyper("slow_step_size", 0.5)

    def _create_slots(self, var_list: Any) -> None:
        self._optimizer._create_slots(var_list=var_list)
        for var in var_list:
            self.add_slot(var, "slow", initializer=var)

    def _after(self, var: Any, apply_state: Any) -> Any:
        slow, step = self.get_slot(var, "slow"), tf.cast(self.iterations + 1, tf.dtypes.int64)
        period = self._get_hyper("sync_period", tf.dtypes.int64)
        merged = slow + self._get_hyper("slow_step_size", var.dtype.base_dtype) * (var - slow)
        is_time = tf.equal(tf.math.floordiv(step, period) * period, step)
        with tf.control_dependencies([merged]):
            return tf.group(
                slow.assign(tf.where(is_time, merged, slow), use_locking=self._use_locking),
                var.assign(tf.where(is_time, merged, var), use_locking=self._use_locking),
            )


class Averaged(Around):
    """MovingAverage; the average begins with the variable."""

    HOOKS_AT_EACH_RUN = True  # its `if` is AutoGraph's

    def __init__(
        self,
        optimizer: Any,
        average_decay: float = 0.99,
        start_step: int = 0,
        dynamic_decay: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        self._set_hyper("average_decay", average_decay)
        self._start_step, self._dynamic = start_step, dynamic_decay

    def _create_slots(self, var_list: Any) -> None:
        self._optimizer._create_slots(var_list=var_list)
        for var in var_list:
            self.add_slot(var, "average", var.read_value())

    @tf.function
    def _decay(self) -> Any:
        decay = self._get_hyper("average_decay", tf.dtypes.float32)
        count = tf.cast(self._optimizer.iterations, tf.float32) - self._start_step
        if count < 0:
            return tf.constant(0.0, tf.float32)
        return tf.minimum(decay, (1.0 + count) / (10.0 + count)) if self._dynamic else decay

    def _after(self, var: Any, apply_state: Any) -> Any:
        average = self.get_slot(var, "average")
        return tf.keras.backend.moving_average_update(average, var, self._decay())


class Snapshots(Around):
    """SWA: the mean of the variable at certain steps."""

    HOOKS_AT_EACH_RUN = True  # its `if` is AutoGraph's

    def __init__(self, optimizer: Any, start: int = 0, period: int = 10, **kwargs: Any) -> None:
        super().__init__(optimizer, **kwargs)
        self._set_hyper("period", period)
        self._set_hyper("start", start)

    def _create_slots(self, var_list: Any) -> None:
        self._optimizer._create_slots(var_list=var_list)
        for var in var_list:
            self.add_slot(var, "average")

    @tf.function
    def _after(self, var: Any, apply_state: Any) -> Any:
        average = self.get_slot(var, "average")
        period, start = (self._get_hyper(name, tf.int64) for name in ("period", "start"))
        snapshot_count = tf.math.maximum(
            tf.cast(0, tf.int64), tf.math.floordiv(self.iterations - start, period)
        )
        if self.iterations >= start and self.iterations == start + snapshot_count * period:
            count = tf.cast(snapshot_count, tf.float32)
            mean = (average * count + var) / (count + 1.0)
            return average.assign(mean, use_locking=self._use_locking)
        return average


class Several(Base):
    """MultiOptimizer: variables by name to one of several optimizers."""

    def __init__(self, parts: Any, name: str = "Several", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._parts = [(optimizer, {var.name for var in owned}) for optimizer, owned in parts]

    def apply_gradients(self, grads_and_vars: Any, **kwargs: Any) -> Any:
        pairs = tuple(grads_and_vars)
        ops = [
            optimizer.apply_gradients([pair for pair in pairs if pair[1].name in names], **kwargs)
            for optimizer, names in self._parts
        ]
        with tf.control_dependencies([tf.group(ops)]):
            return self.iterations.assign_add(1, read_value=False)  # pyright: ignore


class Triangles(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A cyclical learning rate whose peaks halve."""

    def __init__(self, low: float, high: float, step_size: float) -> None:
        super().__init__()
        self._low, self._high, self._step_size = low, high, step_size

    def __call__(self, step: Any) -> Any:
        with tf.name_scope("Triangles"):
            low = tf.convert_to_tensor(self._low, name="low")
            half, step_count = tf.cast(self._step_size, low.dtype), tf.cast(step, low.dtype)
            cycle = tf.floor(1 + step_count / (2 * half))
            x = tf.abs(step_count / half - 2 * cycle + 1)
            height = (tf.cast(self._high, low.dtype) - low) * tf.maximum(
                tf.cast(0, low.dtype), (1 - x)
            )
            return low + height * (1 / (2.0 ** (cycle - 1)))

    def get_config(self) -> Any:
        return {"low": self._low, "high": self._high, "step_size": self._step_size}

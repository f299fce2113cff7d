"""Normalisations: ``LRN`` and ``FusedBatchNormV3`` with their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.backends.tensorflow.pointwise_parts import image_recipes
from pydlbench.backends.tensorflow.runtime import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.backends.tensorflow.recipe import Recipe
    from pydlbench.layers import Pointwise

__all__ = ["batch", "local_response"]

_FLOAT32 = "float32"


def local_response(layer: Pointwise, pass_: str, stored: str) -> list[Recipe]:
    """Return the one way to compute a local response normalisation: channels last, in float32.

    There is no kernel in bfloat16: what is stored in that is converted, and converted back.
    """
    # TensorFlow's alpha applies to the sum, not to the mean, of what is around.
    words = {
        "depth_radius": layer.local_size // 2,
        "bias": layer.k,
        "alpha": layer.alpha / layer.local_size,
        "beta": layer.beta,
    }
    converts = stored != _FLOAT32

    def exact(tensor: Any) -> Any:
        return tf.cast(tensor, _FLOAT32) if converts else tensor

    def forward(x: Any) -> Any:
        found = tf.nn.local_response_normalization(exact(x), **words)
        return tf.cast(found, stored) if converts else found

    def backward(g: Any, x: Any, y: Any) -> Any:
        found = tf.raw_ops.LRNGrad(input_grads=exact(g), input_image=x, output_image=y, **words)
        return tf.cast(found, stored) if converts else found

    def with_result(tensors: Sequence[Any]) -> Sequence[Any]:
        gradient, source = tensors[0], exact(tensors[1])
        return gradient, source, tf.nn.local_response_normalization(source, **words)

    name = "LRN" if pass_ == "forward" else "LRNGrad"
    name = f"Cast, {name}, Cast" if converts else name
    if pass_ == "forward":
        return image_recipes(
            layer, pass_, name, lambda _: forward, ("src",), ("dst",), formats=("NHWC",)
        )
    return image_recipes(
        layer,
        pass_,
        name,
        lambda _: backward,
        ("dst", "src"),
        ("src",),
        formats=("NHWC",),
        complete=with_result,
    )


def batch(layer: Pointwise, pass_: str, *, training: bool) -> list[Recipe]:
    """Return the ways to compute a batch normalisation."""
    if pass_ != "forward":
        return _batch_gradient(layer)
    return _statistics(layer) if training else _inference(layer)


def _inference(layer: Pointwise) -> list[Recipe]:
    def function(data_format: str) -> Callable[..., Any]:
        return lambda x, w, b, m, v: (
            tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=w,
                offset=b,
                mean=m,
                variance=v,
                epsilon=layer.epsilon,
                data_format=data_format,
                is_training=False,
            ).y
        )

    return image_recipes(
        layer,
        "forward",
        "FusedBatchNormV3",
        function,
        ("src", "weights", "bias", "mean", "variance"),
        ("dst",),
        types=(None, *[_FLOAT32] * 4),
    )


def _statistics(layer: Pointwise) -> list[Recipe]:
    """The operator moves the running statistics; their variables are assigned, as Keras does."""

    def function(data_format: str) -> Callable[..., Any]:
        def normalized(x: Any, w: Any, b: Any, mean: Any, variance: Any) -> Any:
            found = tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=w,
                offset=b,
                mean=mean,
                variance=variance,
                epsilon=layer.epsilon,
                exponential_avg_factor=layer.momentum,
                data_format=data_format,
                is_training=True,
            )
            mean.assign(found.batch_mean)
            variance.assign(found.batch_variance)
            return found.y, found.reserve_space_1, found.reserve_space_2

        return normalized

    return image_recipes(
        layer,
        "forward",
        "FusedBatchNormV3",
        function,
        ("src", "weights", "bias", "running_mean", "running_variance"),
        ("dst", "mean", "variance", "running_mean", "running_variance"),
        types=(None, *[_FLOAT32] * 4),
        variables=(3, 4),
    )


def _batch_gradient(layer: Pointwise) -> list[Recipe]:
    def function(data_format: str) -> Callable[..., Any]:
        def gradient(g: Any, x: Any, w: Any, m: Any, v: Any) -> Any:
            found = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=g,
                x=x,
                scale=w,
                reserve_space_1=m,
                reserve_space_2=v,
                reserve_space_3=m,  # of cuDNN; nobody reads it on a CPU
                epsilon=layer.epsilon,
                data_format=data_format,
                is_training=True,
            )
            return found.x_backprop, found.scale_backprop, found.offset_backprop

        return gradient

    return image_recipes(
        layer,
        "backward-data",
        "FusedBatchNormGradV3",
        function,
        ("dst", "src", "weights", "mean", "variance"),
        ("src", "weights", "bias"),
        types=(None, None, *[_FLOAT32] * 3),
    )

"""Scalars over arrays on a GPU, for golden vectors: what the three that all others rest on give."""

from numba import cuda

from ..scalars import exp2c, fma, sigmoid
from .target import kernel, threads

THREADS = threads(128)


@kernel
def fma_values(a, b, c, out):
    """out[i] = fma(a[i], b[i], c[i])."""
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = fma(a[i], b[i], c[i])


@kernel
def exp2c_values(u, out):
    """out[i] = exp2c(u[i])."""
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = exp2c(u[i])


@kernel
def sigmoid_values(x, out):
    """out[i] = sigmoid(x[i])."""
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = sigmoid(x[i])


def over_each(stream, of, given, out):
    """of: one of these kernels; given: its arrays [n] float32; out [n] float32."""
    of[-(-out.shape[0] // THREADS), THREADS, stream](*given, out)

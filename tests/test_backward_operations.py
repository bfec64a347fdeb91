"""Backward operations in other words give what torch's own give."""

import pytest
import torch

from howsure.deploy.tracing import COMPILED, DECOMPOSITIONS

aten = torch.ops.aten


@pytest.mark.parametrize("size", [(7, 9), (8, 8)])
@pytest.mark.parametrize("stride, padding, dilation", [(1, 0, 1), (2, 1, 1), (3, 2, 2)])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradient_of_a_convolution_is_a_convolution(size, stride, padding, dilation, transposed):
    x, weight = torch.randn(2, 4, *size), torch.randn(4, 2, 3, 3)
    settings = [stride] * 2, [padding] * 2, [dilation] * 2, transposed, [0, 0], 2
    out = aten.convolution(x, weight, None, *settings)
    grad = torch.randn_like(out)
    mask = [True, False, False]
    expected = aten.convolution_backward(grad, x, weight, None, *settings, mask)[0]
    ours = DECOMPOSITIONS[aten.convolution_backward.default]
    found = ours(grad, x, weight, None, *settings, mask)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert ours(grad, x, weight, None, *settings, [True, True, False]) is NotImplemented


@pytest.mark.parametrize("size", [(7, 9), (8, 8)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 3)])
@pytest.mark.parametrize("stride, padding", [((1, 1), (0, 0)), ((2, 2), (1, 0)), ((3, 2), (2, 1))])
@pytest.mark.parametrize("dilation", [(1, 1), (1, 2)])
def test_gradient_of_a_convolution_of_few_channels(size, kernel, stride, padding, dilation):
    x, weight = torch.randn(2, 3, *size), torch.randn(5, 3, *kernel)
    settings = stride, padding, dilation, False, [0, 0], 1
    grad = torch.randn_like(aten.convolution(x, weight, None, *settings))
    arguments = (grad, x, weight, None, *settings, [True, False, False])
    found = COMPILED[aten.convolution_backward.default](*arguments)[0]
    expected = aten.convolution_backward(*arguments)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel, stride, padding", [((2, 2), (), (0, 0)), ((3,), (2,), (1,))])
def test_gradients_of_pools(kernel, stride, padding):
    x = torch.randn(2, 3, 7, 8)
    out = aten.avg_pool2d(x, kernel, stride, padding)
    grad = torch.randn_like(out)
    args = (grad, x, kernel, stride, padding, False, True, None)
    found = DECOMPOSITIONS[aten.avg_pool2d_backward.default](*args)
    torch.testing.assert_close(found, aten.avg_pool2d_backward(*args))
    out, indices = aten.max_pool2d_with_indices(x, kernel, stride, padding)
    args = (grad, x, kernel, stride, padding, [1, 1], False, indices)
    found = DECOMPOSITIONS[aten.max_pool2d_with_indices_backward.default](*args)
    torch.testing.assert_close(found, aten.max_pool2d_with_indices_backward(*args))

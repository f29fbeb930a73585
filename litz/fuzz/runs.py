"""A function compiled by Litz without Dynamo, and run natively or by the interpreter.

In: a function and its inputs. Out: its results and its inputs after the call. Frames and guards are
left out: they take most of the time and have none of the risk. A failure raises: nothing here falls
back to eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import unset_fake_temporarily

from litz.capture import decompositions
from litz.compiler import compile_graph
from litz.config import snapshot
from litz.fuzz.interpreted import interpreted
from litz.report import Explanation, discarding_explanation
from litz.runtime import CompiledGraph


class Compiled:
    """Traced and compiled at its first call. With `interpret`, later calls run the kernels' IR.
    Inputs and results are on the CPU; the code may be for another device."""

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any], device: str = "cpu",
        notes: Explanation | None = None,
    ) -> None:  # fmt: skip
        self.config = snapshot(dict(options))
        self.interpret, self.device = False, device
        self.notes = discarding_explanation() if notes is None else notes
        self.traced = aot_function(
            function,
            fw_compiler=self._compile,
            inference_compiler=self._compile,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )

    def _compile(self, module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        with unset_fake_temporarily():  # as in the backend: passes compute with constants
            return self._compiled(module)

    def _compiled(self, module: torch.fx.GraphModule) -> Callable[..., Any]:
        native, report = compile_graph(module, "inference", self.config)
        self.notes.graphs.append(report)

        def run(args: list[Any]) -> Any:
            if not self.interpret:
                return native(args)
            assert isinstance(native, CompiledGraph)
            return interpreted(report.plan.graph, dict(native.constants), args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return on_device(self.traced, self.device, inputs)


def on_device(
    run: Callable[..., Any], device: str, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Call with CPU inputs copied to `device`; results are copied back."""
    if device == "cpu":
        return list(run(*inputs))
    there = OnOtherDevice(device)
    given = [there.moved(t) for t in inputs]
    with _in_full():
        return there.back(list(run(*given)))


@contextmanager
def _in_full() -> Iterator[None]:
    """No convolution computes in TF32, with 10 of 23 bits, as torch allows cuDNN. Eager on that
    device may be that far from float64, but eager on a CPU, which is the reference, is not."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


class OnOtherDevice:
    """Copies of tensors on another device, with the same strides and sharing of memory."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.pairs: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # here, there

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements on the device."""
        here = tensor.untyped_storage()
        if here._cdata not in self.pairs:
            there = torch.UntypedStorage(here.nbytes(), device=self.device).copy_(here)
            self.pairs[here._cdata] = here, there
        return _over(self.pairs[here._cdata][1], tensor)

    def back(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy results to the CPU, and update the inputs from their copies."""
        known = {there._cdata: here for here, there in self.pairs.values()}
        for here, there in self.pairs.values():
            here.copy_(there)
        found = []
        for tensor in results:
            there = tensor.untyped_storage()
            if there._cdata not in known:
                known[there._cdata] = torch.UntypedStorage(there.nbytes()).copy_(there)
            found.append(_over(known[there._cdata], tensor))
        return found


def _over(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """A tensor over other memory, with the layout of `like`."""
    fresh = torch.empty(0, dtype=like.dtype, device=storage.device)
    return fresh.set_(storage, like.storage_offset(), like.shape, like.stride())  # type: ignore


def _kept(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    boxed: Callable[..., Any] = make_boxed_func(module.forward)
    return boxed


def traced(
    function: Callable[..., Any], device: str, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The results of AOTAutograd's graph run by eager: torch's own part, without ours."""
    run = aot_function(
        function, fw_compiler=_kept, inference_compiler=_kept, keep_inference_input_mutations=True
    )
    with torch.no_grad():
        return on_device(run, device, inputs)


def captured(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend: torch's own part as Litz uses it, with eager instead of Litz."""
    hook: Callable[..., Any] = aot_autograd(fw_compiler=_kept, keep_inference_input_mutations=True)
    return hook(module, inputs)  # type: ignore[no-any-return]

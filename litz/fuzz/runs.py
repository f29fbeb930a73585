"""A function compiled by Litz without Dynamo, and run natively or by the interpreter.

In: a function and its inputs. Out: its results and its inputs as they are left. Frames and guards
are left out: they take most of the time and none of the risk. What fails, raises: nothing here
falls back to eager.
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
from litz.report import Explanation, unread
from litz.runtime import CompiledGraph


class Compiled:
    """Traced and compiled on its first call. `interpret` makes later calls run the kernels' IR.
    Inputs are on the CPU, and so are results; the code may be for another device."""

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any], device: str = "cpu",
        notes: Explanation | None = None,
    ) -> None:  # fmt: skip
        self.config = snapshot(dict(options))
        self.interpret, self.device = False, device
        self.notes = unread() if notes is None else notes
        self.traced = aot_function(
            function,
            fw_compiler=self._compile,
            inference_compiler=self._compile,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )

    def _compile(self, module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        with unset_fake_temporarily():  # as the backend does: passes compute with constants
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
    """Call with inputs of the CPU where a device has them; results are of the CPU again."""
    if device == "cpu":
        return list(run(*inputs))
    there = Elsewhere(device)
    given = [there.moved(t) for t in inputs]
    with _in_full():
        return there.back(list(run(*given)))


@contextmanager
def _in_full() -> Iterator[None]:
    """No convolution computes with 10 of 23 bits, as torch lets cuDNN do where that has a kernel
    for it: it is as wide of float64 as eager on that device may be, and a CPU's eager is not."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


class Elsewhere:
    """Tensors on another device: what shares memory shares it there, too, and lies there alike."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.pairs: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}  # here, there

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements there."""
        here = tensor.untyped_storage()
        if here._cdata not in self.pairs:
            there = torch.UntypedStorage(here.nbytes(), device=self.device).copy_(here)
            self.pairs[here._cdata] = here, there
        return _over(self.pairs[here._cdata][1], tensor)

    def back(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Results here, and what was moved there as it is now."""
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
    """A tensor over other memory, laid out as one is."""
    fresh = torch.empty(0, dtype=like.dtype, device=storage.device)
    return fresh.set_(storage, like.storage_offset(), like.shape, like.stride())  # type: ignore


def _kept(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    boxed: Callable[..., Any] = make_boxed_func(module.forward)
    return boxed


def traced(
    function: Callable[..., Any], device: str, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """What AOTAutograd's graph gives when eager runs it: torch's own part, without ours."""
    run = aot_function(
        function, fw_compiler=_kept, inference_compiler=_kept, keep_inference_input_mutations=True
    )
    with torch.no_grad():
        return on_device(run, device, inputs)


def captured(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend: torch's own part as Litz asks for it, with eager behind it."""
    hook: Callable[..., Any] = aot_autograd(fw_compiler=_kept, keep_inference_input_mutations=True)
    return hook(module, inputs)  # type: ignore[no-any-return]

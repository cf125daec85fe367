"""What names of this package were before: each is refused with its name of today."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NoReturn

#: Names of modules, each with that of today.
NAMES = {
    "kerple.torch": {"Cache": "KVCache", "NoPositions": "NoPE", "mirrored": "symmetric"},
}
#: Keyword arguments of functions, each with that of today.
ARGUMENTS = {
    "attention": {"cap": "softcap"},
    "Encoding.forward": {"cap": "softcap"},
    "Run.sample": {"tokens": "max_new_tokens"},
}


def refuse_name(module: str, name: str) -> NoReturn:
    """For ``__getattr__`` of a module: the name is not there, or is another one now.

    An import statement replaces every AttributeError by its own ImportError, without the message,
    so it gets an ImportError.
    """
    new = NAMES.get(module, {}).get(name)
    if new is not None:
        told = f"{module}.{name} is now {module}.{new}"
        if sys._getframe(2).f_code.co_filename.startswith("<frozen importlib"):
            raise ImportError(told, name=module)
        raise AttributeError(told, name=name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)


def refuse_arguments(function: str, unknown: Iterable[str]) -> None:
    """Refuses keyword arguments that the function does not have."""
    for name in unknown:
        new = ARGUMENTS.get(function, {}).get(name)
        told = f"`{name}` is now `{new}`" if new else f"unexpected keyword argument {name!r}"
        raise TypeError(f"{function}(): {told}")

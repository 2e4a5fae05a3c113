"""Two mends of Triton's interpreter."""

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction


def mend() -> None:
    # If some library imported Triton before us (transformers does), Triton's own helpers, `tl.sum` among them, were defined to be
    # compiled. An interpreted kernel cannot call those.
    for module in (tl, tl.standard):
        for name, helper in list(vars(module).items()):
            if isinstance(helper, JITFunction):
                setattr(module, name, interpreter.InterpretedFunction(helper.fn))
    interpreter._patch_lang = prepare_once


prepare = interpreter._patch_lang


def prepare_once(function):
    """The interpreter puts its own functions into Triton's language before every call of a helper. They are there already: the launch
    of the kernel has done it. Looking for them took a third of a decode kernel's time."""
    languages = [module for module in function.__globals__.values() if module is tl or module is tl.core]
    prepared = languages and not any(tl.core.is_builtin(language.load) for language in languages)
    return interpreter._LangPatchScope() if prepared else prepare(function)

"""Everything public says what it is."""

import inspect
from collections.abc import Iterator

import vcoop


def public() -> Iterator[tuple[str, object]]:
    """Each public name of the package, and each public member of its classes."""
    for name in vcoop.__all__:
        if name.startswith("__"):
            continue
        value = getattr(vcoop, name)
        yield name, value
        if inspect.isclass(value) and value.__module__.startswith("vcoop") and not issubclass(value, Exception):
            own = {k: v for k, v in vars(value).items() if not k.startswith("_") or k == "__init__"}
            for member, what in own.items():
                if callable(what) or isinstance(what, property):
                    yield f"{name}.{member}", what


def test_everything_public_has_a_docstring() -> None:
    missing = []
    for name, what in public():
        text = inspect.getdoc(what) or ""
        generated = name.endswith(".__init__") and not text.endswith(".")
        inherited = isinstance(what, type) and text == inspect.getdoc(what.__mro__[1])
        if not generated and (len(text) < 25 or inherited):
            missing.append(name)
    assert not missing


def test_docstrings_name_every_argument() -> None:
    missing = []
    for name, what in public():
        if not inspect.isfunction(what) or name.endswith(".__init__"):
            continue
        text = inspect.getdoc(what) or ""
        names = [arg for arg in inspect.signature(what).parameters if arg != "self"]
        missing += [f"{name}({arg})" for arg in names if f"{arg}:" not in text]
    assert not missing

"""Errors that are not about a scenario or a folder."""


class MissingError(RuntimeError):
    """A package, a cluster or another facility that is needed is not there; the message has the remedy."""


def need(module: str, extra: str) -> object:
    """Import an optional package, or say how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingError(
            f"{module} is not installed\n  remedy: pip install 'vcoop[{extra}]'"
        ) from error

"""``python -m vcoop sweep SWEEP.toml --out DIR --engine ray``: what the command `vcoop` calls."""

from __future__ import annotations

import argparse
import json
import sys
import time

from . import FolderError, MissingError, ScenarioError, __version__, sweep


def main() -> int:
    """Exit codes as those of `vcoop`."""
    parser = argparse.ArgumentParser(prog="python -m vcoop")
    parser.add_argument("command", choices=["sweep"])
    parser.add_argument("file")
    parser.add_argument("--out", required=True)
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--ray-address")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args()
    shown = not args.quiet and sys.stderr.isatty()
    began = time.monotonic()

    def progress(done: int, total: int) -> None:
        gone = time.monotonic() - began
        print(f"\r{done}/{total} points, {gone:.0f} s gone", end="", file=sys.stderr, flush=True)

    try:
        result = sweep(
            args.file,
            args.out,
            engine=args.engine,
            address=args.ray_address,
            progress=progress if shown else None,
        )
    except (ScenarioError, FolderError, ValueError, FileNotFoundError) as error:
        print(f"vcoop: {error}", file=sys.stderr)
        return 2
    except MissingError as error:
        print(f"vcoop: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("vcoop: interrupted; what ended is kept", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001: the last line of defence: a sentence, not a traceback
        print(f"vcoop: {error}", file=sys.stderr)
        return 1
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr)
    if args.json:
        print(
            json.dumps(
                {
                    "schema": "vcoop.sweep-summary/1",
                    "version": __version__,
                    "out": args.out,
                    "done": result.points,
                    "failed": result.failed,
                    "interrupted": False,
                },
                indent=2,
            )
        )
    else:
        print(f"{result.points} points in {result.out}, {result.failed} of this run failed")
    # As the command does: done, and some of its points failed.
    return 5 if result.failed else 0


if __name__ == "__main__":
    sys.exit(main())

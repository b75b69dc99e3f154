"""The keeper: a separate program that is the parent of one container's process and outlives vkubelet.

Invariant: it needs the standard library alone, and the result of the process is in `state.json` before the keeper exits.

It runs as `python -I -S`, so this package imports itself relatively and nothing of vkubelet; without that it takes 4 MiB instead of 40. It
has no injected Clock: it reads the time by itself. `main.py` is its entry point, `life.py` its loop, `child.py` runs in a new process
before its program, `mounts.py` makes the mounts, `clients.py` handles connections of vkubelet, `frames.py` is their protocol, `logfile.py`
writes the logs, and `procfs.py` reads /proc.
"""

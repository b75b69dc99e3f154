"""The keeper: a program of its own that is the parent of one container's process and outlives vkubelet.

Invariant: it needs the standard library alone, and what becomes of the process is in `state.json` before the keeper ends.

It runs as `python -I -S`, so this package imports itself relatively and nothing of vkubelet; without that it takes 4 MiB instead of 40.
It can be given no Clock: it reads the time by itself. `main.py` begins, `life.py` is its loop, `child.py` what happens in a new process
before its program, `mounts.py` how mounts come to be, `clients.py` how vkubelet speaks to it, `frames.py` the words they use,
`logfile.py` how logs are written, and `procfs.py` reads /proc.
"""

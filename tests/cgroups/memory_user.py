"""Uses so many bytes of memory, once somebody writes a line to it, and says so.

Where that is too much, nobody else's process is to be killed for it.
"""

import mmap
import sys
import time
from pathlib import Path

Path("/proc/self/oom_score_adj").write_text("1000")
sys.stdin.readline()
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)  # one that khugepaged has hold of stays where it is
for page in range(0, len(memory), mmap.PAGESIZE):
    memory[page] = 1
sys.stdout.write("used\n")
sys.stdout.flush()
time.sleep(1000)

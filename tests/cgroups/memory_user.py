"""Uses so many bytes of memory, once somebody writes a line to it, and says so.

With another argument it uses huge pages of the default size out of the pool, by their size in bytes.
Where that is too much, nobody else's process is to be killed for it.
"""

import mmap
import sys
import time
from pathlib import Path

MAP_HUGETLB = 0x40000  # not in Python's mmap; mmap(2)

Path("/proc/self/oom_score_adj").write_text("1000")
sys.stdin.readline()
size, page_size = (*map(int, sys.argv[1:]), mmap.PAGESIZE)[:2]
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
if page_size > mmap.PAGESIZE:
    memory = mmap.mmap(-1, size, flags=ANONYMOUS | MAP_HUGETLB)
else:
    memory = mmap.mmap(-1, size, flags=ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # one that khugepaged has hold of stays where it is
for page in range(0, size, page_size):
    memory[page] = 1
sys.stdout.write("used\n")
sys.stdout.flush()
time.sleep(1000)

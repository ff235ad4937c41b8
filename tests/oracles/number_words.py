#!/usr/bin/env python3
"""Number words from an independent source (num2words, `pip install num2words==0.5.14`): writes the whole corpus 0 ... 999,999
as TSV to standard output and its FNV-1a hash, which tests/gnmt/numbers_test.cpp holds, to standard error. num2words writes
commas in English, which the corpus has not."""
import sys

from num2words import num2words

digest = 0xCBF29CE484222325
for n in range(1_000_000):
    line = f"{num2words(n).replace(',', '')}\t{num2words(n, lang='fr')}\n".encode()
    for byte in line:
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    sys.stdout.buffer.write(line)
print(f"0x{digest:016x}", file=sys.stderr)

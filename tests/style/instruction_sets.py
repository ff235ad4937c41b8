# Finds instructions where they must not be: AVX-512 outside the objects of avx512, its products of bf16 outside those of
# avx512_bf16, AVX outside all of these and avx2, and inline functions in any of them that the linker could hand to code for every
# processor. Usage: instruction_sets.py LIST, lines "set path" with set = common, portable, avx2, avx512 or avx512_bf16. Exits with 77
# where it cannot look.
import platform
import re
import shutil
import subprocess
import sys

AVX512 = re.compile(r'%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b')
AVX = re.compile(r'%ymm|\tv[a-z]\w*\s+.*%xmm')
PAIRS = re.compile(r'\tv\w*bf16\w*\s')
ALLOWED = {'common': 'sse', 'portable': 'sse', 'avx2': 'avx', 'avx512': 'avx512', 'avx512_bf16': 'avx512_bf16'}


def widest(disassembly):
    """The widest instruction set in objdump's text, and the first line that shows it."""
    found, shown = 'sse', ''
    for line in disassembly.splitlines():
        if PAIRS.search(line):
            return 'avx512_bf16', line.strip()
        if found != 'avx512' and AVX512.search(line):
            found, shown = 'avx512', line.strip()
        if found == 'sse' and AVX.search(line):
            found, shown = 'avx', line.strip()
    return found, shown


def shared_functions(symbols):
    """Names of functions in nm's text that the linker merges across objects."""
    return [line.split(' ', 2)[2] for line in symbols.splitlines() if re.match(r'[0-9a-f]+ [WVu] ', line)]


def check(kind, disassembly, symbols):
    order = ['sse', 'avx', 'avx512', 'avx512_bf16']
    found, shown = widest(disassembly)
    if order.index(found) > order.index(ALLOWED[kind]):
        yield f'{found} code in an object of {kind}: {shown}'
    if kind in ('avx2', 'avx512', 'avx512_bf16'):
        for name in shared_functions(symbols):
            yield f'{name} could be linked into code for every processor'


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, errors='replace').stdout


def main():
    for tool in ('objdump', 'nm'):
        if not shutil.which(tool):
            print(f'skipped: {tool} is not installed')
            return 77
    if platform.machine() not in ('x86_64', 'AMD64'):
        print(f'skipped: the rule is about x86-64, this is {platform.machine()}')
        return 77
    seen, bad = {}, 0
    with open(sys.argv[1], encoding='utf-8') as file:
        objects = [line.split(' ', 1) for line in file.read().splitlines() if line]
    for kind, path in objects:
        disassembly = output_of('objdump', '-d', '--no-show-raw-insn', path)
        seen.setdefault(kind, set()).add(widest(disassembly)[0])
        for text in check(kind, disassembly, output_of('nm', '-C', path)):
            print(f'{path}: {text}')
            bad += 1
    for kind in ('avx2', 'avx512', 'avx512_bf16'):
        if kind in seen and ALLOWED[kind] not in seen[kind]:
            print(f'no {ALLOWED[kind]} code in the objects of {kind}: are its flags lost?')
            bad += 1
    print(f'{len(objects)} objects, {bad} violations')
    return 1 if bad or not seen.get('common') else 0


if __name__ == '__main__':
    sys.exit(main())

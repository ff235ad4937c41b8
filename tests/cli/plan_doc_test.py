# The parts of docs/plan.md that a program made are what the tool says today: the output of each command behind
# `<!-- everglow plan ... -->`, the table of measured products, the rows of the self-test, and the calibration table.
# Usage: plan_doc_test.py TOOL; with --write behind it the document is written anew.
import json
import os
import re
import shlex
import statistics
import subprocess
import sys

TOOL = sys.argv[1]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
DOCUMENT = os.path.join(ROOT, 'docs', 'plan.md')
PASSES = ('forward', 'activation_gradient', 'weight_gradient')
# batch, inputs, outputs, TFLOP/s of the three passes: one H200, PyTorch 2.11, cuBLASLt of CUDA 13.0, f16. None: not measured.
MEASURED = ((4096, 1024, 4096, (669, 729, 695)), (512, 1024, 4096, (221, 237, 211)), (2048, 4096, 4096, (750, 660, 623)),
            (16384, 1024, 32320, (654, 703, 686)), (5120, 1024, 33708, (239, 262, 248)), (5120, 1024, 33712, (720, 695, 673)),
            (5120, 1024, 33792, (609, 680, 661)), (4095, 1024, 4096, (664, 709, 668)), (4096, 1023, 4097, (103, 143, 152)),
            (64, 1024, 4096, (26, None, None)), (16, 4096, 14336, (59, None, None)), (1, 4096, 4096, (1.3, None, None)))


def output(arguments):
    result = subprocess.run([TOOL, 'plan', *arguments], capture_output=True, timeout=60)
    if result.returncode != 0:
        sys.exit(f'everglow plan {" ".join(arguments)}: {result.stderr.decode()}')
    return result.stdout.decode()


def measured_table():
    lines = ['| batch | inputs | outputs | forward | dx | dw |', '|---|---|---|---|---|---|']
    aligned, odd = [], []
    for batch, inputs, outputs, rates in MEASURED:
        sizes = [f'--batch={batch}', f'--inputs={inputs}', f'--outputs={outputs}']
        plan = json.loads(output(['linear', *sizes, '--device=h200', '--dtype=f16', '--json']))
        cells = []
        for gemm, rate in zip(plan['gemms'], rates):
            if rate is None:
                cells.append('')
                continue
            us = 2e-6 * batch * inputs * outputs / rate
            error = gemm['time_us'] / us - 1
            cells.append(f'{gemm["time_us"]:.4g} / {us:.4g} ({100 * error:+.0f} %)')
            (aligned if gemm['alignment_bytes'] >= 16 else odd).append(abs(error))
        lines.append(f'| {batch} | {inputs} | {outputs} | {" | ".join(cells)} |')
    lines += ['', f'Median error of the {len(aligned)} aligned products {100 * statistics.median(aligned):.0f} %, of the {len(odd)} others '
              f'{100 * statistics.median(odd):.0f} %.']
    return '\n'.join(lines)


def calibration_table():
    """Each constant of src/plan/calibration.hpp with the words beside or above it."""
    with open(os.path.join(ROOT, 'src', 'plan', 'calibration.hpp'), encoding='utf-8') as file:
        text = file.read()
    lines, above, in_comment = ['| constant | value | source |', '|---|---|---|'], '', False
    for line in text[text.index('namespace'):].splitlines():
        comment = re.match(r'\s*///? ?(.*)', line)
        entry = re.match(r'\s*\{"([\w-]+)", ([\d.]+)\},\s*// (.*)', line)
        names = re.match(r'inline constexpr (?:double|std::int64_t) (.*?);(?:\s*// (.*))?$', line)
        if comment:
            above = (above + ' ' if in_comment else '') + comment.group(1)
            in_comment = True
            continue
        in_comment = False
        if entry:
            lines.append(f'| share of the rate, {entry.group(1)} | {entry.group(2)} | {entry.group(3)} |')
        if names:
            for name, value in re.findall(r'(\w+) = ([^,]+)', names.group(1)):
                lines.append(f'| {name} | {value} | {names.group(2) or above} |')
    return '\n'.join(lines)


def self_test_table():
    """bench/results/plan_self_test.jsonl row by row: a line for each problem, its passes side by side."""
    with open(os.path.join(ROOT, 'bench', 'results', 'plan_self_test.jsonl'), encoding='utf-8') as file:
        rows = [json.loads(line) for line in file]
    first = rows[0]
    lines = [f'{first["device"]}, {first["isa"]}, {first["threads"]} threads, {first["date"][:10]}: predicted us / measured us (error).', '']
    errors = {}
    for layer, heads in (('linear', 'forward | dx, or both gradients | dw'), ('recurrent', 'forward | backward'),
                         ('attention', 'forward | backward')):
        lines += [f'| {layer} | {heads} |', '|---' * (heads.count('|') + 2) + '|']
        cases = {}
        for row in rows:
            if row['op'] != layer:
                continue
            errors.setdefault(layer, []).append(abs(row['error']))
            cell = f'{row["predicted_us"]:.4g} / {row["median_us"]:.4g} ({100 * row["error"]:+.0f} %)'
            cases.setdefault(row['case'].removeprefix(f'{layer} '), []).append(cell)
        lines += [f'| {case} | {" | ".join(cells + [""] * (heads.count("|") + 1 - len(cells)))} |' for case, cells in cases.items()]
        lines.append('')
    everything = [error for some in errors.values() for error in some]
    medians = [f'{layer} {100 * statistics.median(some):.0f} %' for layer, some in errors.items()]
    lines.append(f'Median error: {", ".join(medians)}; of all {len(everything)} passes {100 * statistics.median(everything):.0f} %.')
    return '\n'.join(lines)


def block(mark):
    if mark == 'measured products':
        return measured_table()
    if mark == 'calibration':
        return calibration_table()
    if mark == 'self-test':
        return self_test_table()
    arguments = shlex.split(mark)
    if arguments[:2] != ['everglow', 'plan']:
        sys.exit(f'docs/plan.md: no such block: {mark}')
    return f'```\n$ {mark}\n{output(arguments[2:])}```'


def made(text):
    return re.sub(r'(<!-- (.*?) -->\n).*?(<!-- end -->)', lambda m: f'{m.group(1)}{block(m.group(2))}\n{m.group(3)}', text, flags=re.S)


def without_kernels(text):
    """Without the rows and which of them is taken: the document shows those of a build without CUDA."""
    return re.sub(r'^kernel  .*\n(?:  \S+ {2,}.*\n)*', '', text, flags=re.M)


with open(DOCUMENT, encoding='utf-8') as file:
    document = file.read()
fresh = made(document)
built_with_cuda = 'CUDA not built' not in subprocess.run([TOOL, 'info'], capture_output=True, text=True, timeout=60).stdout
if built_with_cuda:
    if sys.argv[2:] == ['--write']:
        sys.exit('docs/plan.md is written by a build without CUDA')
    document, fresh = without_kernels(document), without_kernels(fresh)
if sys.argv[2:] == ['--write']:
    with open(DOCUMENT, 'w', encoding='utf-8') as file:
        file.write(fresh)
elif fresh != document:
    for old, new in zip(document.splitlines(), fresh.splitlines()):
        if old != new:
            print(f'docs/plan.md says: {old}\nthe tool says:     {new}')
            break
    sys.exit('docs/plan.md is not what the tool says: python3 tests/cli/plan_doc_test.py TOOL --write')
print(document.count('<!-- end -->'), 'blocks')

# everglow check on the layer with the quickest cases, on every instruction set of the machine; docs/support.md is what it writes.
# Usage: check_test.py TOOL
import difflib
import json
import os
import pathlib
import subprocess
import sys

TOOL = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != 'EVERGLOW_ISA'}


def run(*arguments, **more):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, encoding='utf-8', timeout=280,
                          env={**ENVIRONMENT, **more})


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


def table():
    result = run('check', '--layer', 'softmax', '--threads', '2')
    check(result.returncode == 0 and not result.stderr, result.returncode, result.stdout, result.stderr)
    lines = result.stdout.splitlines()
    check(all(len(line) <= 100 for line in lines), 'lines of at most 100 columns', result.stdout)
    check(lines[-1].startswith('all rows agree with the reference in '), lines[-1])
    check(any(line.startswith('softmax    reference.softmax          -         f32 f16 bf16 f64') for line in lines), result.stdout)


def objects():
    result = run('check', '--layer', 'softmax', '--json')
    found = json.loads(result.stdout)
    check(result.returncode == 0 and found['passed'] is True and found['schema_version'] == 1, result.stdout[:500])
    sets = found['instruction_sets']
    check(sets == ['portable', 'avx2', 'avx512', 'avx512_bf16'][:len(sets)], sets)
    rows = [(row['row'], row['isa']) for row in found['rows']]
    check(rows == [*(('cpu.softmax_online', isa) for isa in sets), ('reference.softmax', None)], rows)
    check(all(row['verdict'] == 'agrees' and row['cases'] > 0 and 0 <= row['worst_share'] <= 1 for row in found['rows']), rows)
    # A row of ours rounds, so a comparison that looks at nothing would show.
    check(all(row['worst_share'] > 0 for row in found['rows'] if row['isa']), rows)
    proved = {(entry['layer'], entry['option'], entry['row']): entry['dtypes'] for entry in found['support']}
    check('f32' in proved[('softmax', 'log', 'reference.softmax')], found['support'])
    lowered = json.loads(run('check', '--row', 'cpu.softmax_online', '--json', EVERGLOW_ISA='portable').stdout)
    check([(row['row'], row['isa']) for row in lowered['rows']] == [('cpu.softmax_online', 'portable')], lowered['rows'])


def wrong_arguments():
    for expected, arguments in (('--layer: expected linear or', ('--layer', 'conv')), ('--row: expected one of', ('--row', 'fast')),
                                ('cpu.softmax_online', ('--layer', 'softmax', '--row', 'reference.linear')),
                                ('--threads: expected a whole number', ('--threads', '0'))):
        result = run('check', *arguments)
        check(result.returncode == 2 and expected in result.stderr and not result.stdout, arguments, result.stderr)


def support():
    result = run('check', '--support')
    check(result.returncode == 0, result.stderr)
    if '| `onednn.linear` |' not in result.stdout or 'oneDNN        no' in run('info').stdout:
        print('docs/support.md not compared: it tells of a build with oneDNN')
        return
    path = ROOT / 'docs' / 'support.md'
    kept = path.read_text(encoding='utf-8') if path.exists() else ''
    lines = difflib.unified_diff(kept.splitlines(), result.stdout.splitlines(), 'docs/support.md', 'everglow check --support', lineterm='')
    check(kept == result.stdout, 'docs/support.md is not current; write it with: build/cpu/everglow check --support >docs/support.md',
          *(f'\n{line}' for line in lines))


table()
objects()
wrong_arguments()
support()
print('check: all well')

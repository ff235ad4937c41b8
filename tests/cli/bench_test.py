# everglow bench: records of explicit and of built-in problems, what it refuses, and the comparison of two files.
# Usage: bench_test.py TOOL
import json
import os
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]
SMALL = ('--rotate', '0', '--seconds', '0', '--threads', '1')
LINEAR = ('bench', 'linear', '--batch', '4', '--inputs', '16', '--outputs', '8', *SMALL)


def run(*arguments):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, encoding='utf-8', timeout=280)


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


def records(*arguments):
    result = run(*arguments, '--json')
    check(result.returncode == 0 and not result.stderr, arguments, result.returncode, result.stderr)
    return [json.loads(line) for line in result.stdout.splitlines()]


def explicit_problems():
    found = records(*LINEAR)
    check({(r['kernel'], r['direction']) for r in found} >= {('cpu.linear', 'forward'), ('cpu.linear', 'backward'),
                                                           ('reference.linear', 'backward')}, found)
    for r in found:
        samples = sorted(r['samples_us'])
        check(r['case'] == 'linear batch=4 inputs=16 outputs=8' and r['op'] == 'linear' and r['threads'] == 1, r)
        check(samples[0] <= r['p10_us'] <= r['median_us'] <= r['p90_us'] <= samples[-1] and len(samples) >= 5, r)
        check(r['flops'] == (1024 if r['direction'] == 'forward' else 2048) and r['ref']['name'] == 'reference.linear', r)
    forced = records('bench', 'softmax', '--rows', '2', '--columns', '9', '--dtype', 'bf16', '--kernel', 'reference.softmax',
                     '--direction', 'forward', *SMALL)
    check([(r['kernel'], r['dtype'], r['case']) for r in forced] ==
          [('reference.softmax', 'bf16', 'softmax rows=2 columns=9 dtype=bf16')], forced)
    steps = records('bench', 'recurrent', '--steps', '3', '--batch', '2', '--inputs', '4', '--hidden', '8', '--cell', 'gru',
                    '--direction', 'forward', *SMALL)
    check(all(r['steps'] == 3 and abs(r['us_per_step'] * 3 - r['median_us']) < 0.01 * r['median_us'] for r in steps), steps)
    model = records('bench', 'gnmt', '--batch', '2', '--length', '3', '--hidden', '16', '--layers', '2', '--vocabulary', '30', *SMALL)
    check([r['direction'] for r in model] == ['train', 'evaluate'], model)
    check(all(r['pairs'] == 2 and r['tokens'] == 16 and r['pairs_per_second'] > 0 for r in model), model)


def peers():
    rows = {r['kernel']: r for r in records('bench', 'linear', '--batch', '8', '--inputs', '16', '--outputs', '24',
                                             '--activation', 'gelu_tanh', '--peers', *SMALL)}
    if 'oneDNN        no' in run('info').stdout:
        check(not any(name.startswith('peer.') for name in rows), rows)
        return
    check({'peer.onednn', 'peer.onednn_packed'} <= set(rows) and rows['cpu.linear']['ref']['name'] == 'peer.onednn', rows)
    lstm = records('bench', 'recurrent', '--steps', '2', '--batch', '2', '--inputs', '8', '--hidden', '8', '--peers', *SMALL)
    check({(r['kernel'], r['direction']) for r in lstm} >= {('peer.onednn', 'forward'), ('peer.onednn_packed', 'backward')}, lstm)


def tables(folder):
    listed = run('bench', 'all', '--list')
    check(listed.returncode == 0 and len(listed.stdout.splitlines()) >= 8, listed.stdout)
    out = os.path.join(folder, 'rows.jsonl')
    result = run(*LINEAR, '--out', out)
    check(result.returncode == 0, result.stderr)
    lines = result.stdout.splitlines()
    check(all(len(line) <= 100 for line in lines[1:]), result.stdout)  # the first names the processor
    check(lines[3].split() == ['direction', 'kernel', 'median', 'us', 'spread', 'GFLOP/s', 'GB/s', 'x', 'reference'], lines[3])
    with open(out, encoding='utf-8') as file:
        written = [json.loads(line) for line in file]
    check(len(written) == len(lines) - 4, 'a record for each line of the table', len(written), result.stdout)


def comparison(folder):
    def file(name, rows):
        path = os.path.join(folder, name)
        with open(path, 'w', encoding='utf-8') as out:
            for kernel, median in rows:
                out.write(json.dumps({'case': 'softmax rows=1 columns=2', 'direction': 'forward', 'kernel': kernel, 'threads': 2,
                                      'median_us': median, 'p10_us': median * 0.98, 'p90_us': median * 1.02}) + '\n')
        return path

    before, after = file('a', (('one', 100), ('two', 50), ('old', 1))), file('b', (('one', 80), ('two', 60), ('new', 1)))
    result = run('bench', 'compare', before, after)
    check(result.returncode == 1 and '2 rows in both, 1 slower by more than 10 %' in result.stdout, result.stdout)
    lines = result.stdout.splitlines()
    check(lines[0] == 'softmax rows=1 columns=2' and '1.25 x' in lines[1] and lines[2].endswith('0.83 x  slower'), result.stdout)
    check(run('bench', 'compare', before, after, '--threshold', '25').returncode == 0, 'within the threshold')
    check(run('bench', 'compare', before, before).returncode == 0, 'a file and itself')
    damaged = os.path.join(folder, 'c')
    with open(damaged, 'w', encoding='utf-8') as out:
        out.write('{"case": 1}\n')
    for expected, path in (('No such file', os.path.join(folder, 'none')), ('c:1: expected a record', damaged)):
        result = run('bench', 'compare', before, path)
        check(result.returncode == 1 and expected in result.stderr, result.stderr)
    result = run('bench', 'compare', before, file('d', (('three', 1),)))
    check(result.returncode == 2 and 'rows in common' in result.stderr, result.stderr)


def wrong_arguments():
    for expected, arguments in (('--inputs, --outputs too', ('linear', '--batch', '4')),
                                ('--batch: expected a whole number', ('linear', '--batch', '-1')),
                                ('--kernel: expected one of', ('linear', '--kernel', 'cpu.softmax_online')),
                                ('no case of linear holds "x=y"', ('linear', '--filter', 'x=y')),
                                ('has forward, backward, got "sideways"', (*LINEAR[1:], '--direction', 'sideways')),
                                ('activation: expected one of none, relu', (*LINEAR[1:], '--activation', 'tanh')),
                                ('cannot write', (*LINEAR[1:], '--out', '/nowhere/x'))):
        result = run('bench', *arguments)
        check(result.returncode == (1 if '--out' in arguments else 2) and expected in result.stderr, arguments, result.stderr)
        check('terminate' not in result.stderr and len(result.stderr.splitlines()) <= 4, result.stderr)


explicit_problems()
peers()
with tempfile.TemporaryDirectory() as temporary:
    tables(temporary)
    comparison(temporary)
wrong_arguments()
print('bench: all well')

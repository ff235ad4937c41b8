# everglow bench: records of explicit and of built-in problems, what it refuses, the comparison of two files, the page of a report.
# Usage: bench_test.py TOOL
import html.parser
import json
import math
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]
os.environ['XDG_CACHE_HOME'] = '/nonexistent'  # figures that a probe kept on this machine are for plans, not for this test
SMALL = ('--rotate', '0', '--seconds', '0', '--threads', '1')
RECURRENT = ('recurrent', '--steps', '2', '--batch', '2', '--inputs', '2', '--hidden', '4', *SMALL)
GNMT = ('gnmt', '--batch', '2', '--hidden', '8', '--layers', '1', '--vocabulary', '20', *SMALL)
LINEAR = ('bench', 'linear', '--batch', '4', '--inputs', '16', '--outputs', '8', *SMALL)


def run(*arguments, **environment):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, encoding='utf-8', timeout=280,
                          env={**os.environ, **environment})


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


def records(*arguments):
    result = run(*arguments, '--json')
    check(result.returncode == 0 and not result.stderr, arguments, result.returncode, result.stderr)
    return [json.loads(line) for line in result.stdout.splitlines()]


FIELDS = {'op': str, 'case': str, 'direction': str, 'kernel': str, 'chosen': bool, 'dtype': str, 'device': str, 'isa': str,
          'threads': int, 'driver': type(None), 'nvcc': type(None), 'commit': str, 'dirty': bool, 'date': str, 'warmup': int,
          'samples_us': list, 'median_us': (int, float), 'p10': (int, float), 'p90': (int, float), 'flops': (int, float),
          'bytes': (int, float), 'floor_us': (int, float, type(None)), 'floor_share': (int, float, type(None)),
          'predicted_us': (int, float, type(None)), 'peak_gflops': (int, float), 'bandwidth_gbs': (int, float), 'figures': str,
          'ref': (dict, type(None)), 'ratio': (int, float, type(None))}
OPTIONAL = {'steps', 'us_per_step', 'tokens', 'tokens_per_second', 'pairs', 'pairs_per_second'}


def about(value, expected):
    return math.isclose(value, expected, rel_tol=1e-4)


def schema(found):
    """Every record has every field of docs/bench.md, and what is derived follows from the rest."""
    for r in found:
        check(set(FIELDS) <= set(r) <= set(FIELDS) | OPTIONAL, sorted(set(FIELDS) ^ set(r)), r)
        for field, kind in FIELDS.items():
            check(isinstance(r[field], kind), field, r)
        check(re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ', r['date']), r['date'])
        if r['floor_us']:
            check(about(r['floor_share'], r['floor_us'] / r['median_us']), r)
        peer = r['kernel'].startswith('peer.')
        if r['op'] != 'gnmt' and not (r['op'] == 'recurrent' and r['flops'] == 0):  # rows without steps have no floor
            check(r['floor_us'] > 0 and r['peak_gflops'] > 0 and r['bandwidth_gbs'] > 0, r)
            check((r['predicted_us'] is None) == (peer or r['op'] == 'copy') and not (peer and r['chosen']), r)


def expectations():
    """Prediction and floor are the plan's: both directions together, and one product of which both are known."""
    sizes = ('--batch', '64', '--inputs', '96', '--outputs', '128')
    both = {r['direction']: r for r in records('bench', 'linear', *sizes, '--kernel', 'cpu.linear', *SMALL)}
    plan = json.loads(run('plan', 'linear', *sizes, '--kernel', 'cpu.linear', '--threads', '1', '--json').stdout)
    for mine, theirs in (('predicted_us', 'time_us'), ('floor_us', 'floor_us')):
        check(about(sum(r[mine] for r in both.values()), plan[theirs]), mine, both, plan[theirs])
    forward = both['forward']
    moved = max(forward['flops'] / forward['peak_gflops'], forward['bytes'] / forward['bandwidth_gbs']) / 1e3
    check(about(forward['floor_us'], moved), forward, moved)
    softmax = {r['direction']: r for r in records('bench', 'softmax', '--rows', '8', '--columns', '64', '--kernel',
                                                  'cpu.softmax_online', *SMALL)}
    check(all(about(r['floor_us'], r['bytes'] / r['bandwidth_gbs'] / 1e3) for r in softmax.values()), softmax)
    chosen = [r['kernel'] for r in records(*LINEAR, '--direction', 'forward') if r['chosen']]
    plan = json.loads(run('plan', 'linear', '--batch', '4', '--inputs', '16', '--outputs', '8', '--threads', '1', '--json').stdout)
    check(chosen == [plan['kernel']], chosen, plan['kernel'])


def recurrent_options():
    """Every cell, and every option by what it does to the arithmetic that is counted."""
    sizes = ('--steps', '6', '--batch', '4', '--inputs', '5', '--hidden', '7', '--direction', 'forward', *SMALL)

    def flops(*options):
        found = records('bench', 'recurrent', *sizes, *options)
        schema(found)
        check({'reference.recurrent'} < {r['kernel'] for r in found}, options, found)
        return found[0]['flops']

    step = 2 * 6 * 4 * 7
    for cell, gates in (('lstm', 4), ('gru', 3), ('gru_reset_before', 3), ('tanh', 1), ('relu', 1)):
        check(flops('--cell', cell) == step * gates * 12, cell)
    check(flops('--layers', '3', '--bidirectional', '1') == 2 * step * 4 * (12 + 2 * 21), 'layers, bidirectional')
    check(flops('--projection', '3') == step * (4 * 8 + 3), 'projection')
    check(flops('--resets', '1', '--dropout', '0.5', '--layers', '2') == step * 4 * (12 + 14), 'resets, dropout')
    rows = sum(1 + row * 7919 % 6 for row in range(4))
    check(flops('--lengths', 'random') == 2 * rows * 7 * 4 * 12, 'lengths')
    check(flops('--lengths', 'zero') == 0 and flops('--lengths', 'full') == step * 4 * 12, 'lengths')
    both = records('bench', 'recurrent', *sizes[:8], '--layers', '2', '--bidirectional', '1', '--projection', '3', '--lengths',
                   'random', '--resets', '1', '--peers', '--direction', 'backward', *SMALL)
    check(len(both) >= 2 and not any(r['kernel'].startswith('peer.') for r in both), both)


def attention_options():
    sizes = ('--batch', '2', '--queries', '6', '--keys', '6', '--heads', '2', '--head-dim', '4')
    one = 2 * 2 * 2 * 2 * 4  # of a score: two products, batch, heads, head_dim, multiply and add
    for options, scores in (((), 36), (('--causal', '1'), 21), (('--causal', '1', '--window-left', '1'), 11),
                            (('--window-left', '1', '--window-right', '2'), 20)):
        found = records('bench', 'attention', *sizes, *options, '--direction', 'forward', *SMALL)
        schema(found)
        check(all(r['flops'] == one * scores for r in found), options, found)
    inference = records('bench', 'attention', *sizes, '--training', '0', *SMALL)
    check({r['direction'] for r in inference} == {'forward'}, inference)


def model():
    sizes = ('--hidden', '16', '--layers', '1', '--vocabulary', '80', *SMALL)
    random = records('bench', 'gnmt', '--batch', '2', '--length', '3', *sizes)
    check([r['direction'] for r in random] == ['train', 'evaluate'], random)
    check(all(r['pairs'] == 2 and r['tokens'] == 16 and r['pairs_per_second'] > 0 for r in random), random)
    numbers = records('bench', 'gnmt', '--batch', '3', '--text', 'numbers', *sizes)
    schema(random + numbers)
    check(all(r['pairs'] == 12 and about(r['pairs_per_second'] * r['median_us'] / 1e6, 12) for r in numbers), numbers)
    # What the batches hold, made again from the corpus.
    lines = run('corpus').stdout.splitlines()
    pairs = [[side.replace('-', ' ').split(' ') for side in lines[(1 + i * 7919) % 1_000_000].split('\t')] for i in range(96)]
    pairs.sort(key=lambda pair: len(pair[0]))
    taken = [pair for b in range(4) for pair in pairs[(2 * b + 1) * 96 // 8 - 1:(2 * b + 1) * 96 // 8 + 2]]
    check(numbers[0]['tokens'] == sum(len(a) + len(b) + 2 for a, b in taken), numbers[0]['tokens'])
    check(numbers[0]['predicted_us'] > 0 and numbers[0]['floor_us'] > 0 and numbers[1]['predicted_us'] is None, numbers)


def explicit_problems():
    found = records(*LINEAR)
    schema(found)
    check({(r['kernel'], r['direction']) for r in found} >= {('cpu.linear', 'forward'), ('cpu.linear', 'backward'),
                                                           ('reference.linear', 'backward')}, found)
    for r in found:
        samples = sorted(r['samples_us'])
        check(r['case'] == 'linear batch=4 inputs=16 outputs=8' and r['op'] == 'linear' and r['threads'] == 1, r)
        check(samples[0] <= r['p10'] <= r['median_us'] <= r['p90'] <= samples[-1] and len(samples) >= 5, r)
        check(r['flops'] == (1024 if r['direction'] == 'forward' else 2048) and r['ref']['name'] == 'reference.linear', r)
    forced = records('bench', 'softmax', '--rows', '2', '--columns', '9', '--dtype', 'bf16', '--kernel', 'reference.softmax',
                     '--direction', 'forward', *SMALL)
    check([(r['kernel'], r['dtype'], r['case']) for r in forced] ==
          [('reference.softmax', 'bf16', 'softmax rows=2 columns=9 dtype=bf16')], forced)
    steps = records('bench', 'recurrent', '--steps', '3', '--batch', '2', '--inputs', '4', '--hidden', '8', '--cell', 'gru',
                    '--direction', 'forward', *SMALL)
    check(all(r['steps'] == 3 and abs(r['us_per_step'] * 3 - r['median_us']) < 0.01 * r['median_us'] for r in steps), steps)


def threads():
    """Those that are asked for, else EVERGLOW_THREADS, else all cores."""
    quick = ('bench', 'softmax', '--rows', '2', '--columns', '9', '--direction', 'forward', '--rotate', '0', '--seconds', '0')
    cores = len(os.sched_getaffinity(0))
    for arguments, environment, expected in ((), {'EVERGLOW_THREADS': '3'}, 3), (('--threads', '1'), {'EVERGLOW_THREADS': '3'}, 1), \
            ((), {'EVERGLOW_THREADS': ''}, cores):
        result = run(*quick, *arguments, **environment)
        plural = '' if expected == 1 else 's'
        check(f', {expected} thread{plural}, seed 1' in result.stdout.splitlines()[0], expected, result.stdout, result.stderr)
        result = run(*quick, *arguments, '--json', **environment)
        check({json.loads(line)['threads'] for line in result.stdout.splitlines()} == {expected}, expected, result.stdout)


def peers():
    linear = records('bench', 'linear', '--batch', '8', '--inputs', '16', '--outputs', '24', '--activation', 'gelu_tanh', '--peers',
                     *SMALL)
    schema(linear)
    rows = {r['kernel']: r for r in linear}
    if 'oneDNN        no' in run('info').stdout:
        check(not any(name.startswith('peer.') for name in rows), rows)
        return
    check({'peer.onednn', 'peer.onednn_packed'} <= set(rows) and rows['cpu.linear']['ref']['name'] == 'peer.onednn', rows)
    lstm = records('bench', 'recurrent', '--steps', '2', '--batch', '2', '--inputs', '8', '--hidden', '8', '--peers', *SMALL)
    check({(r['kernel'], r['direction']) for r in lstm} >= {('peer.onednn', 'forward'), ('peer.onednn_packed', 'backward')}, lstm)


def tables(folder):
    for tag in ('bench', 'headline', 'users'):
        listed = run('bench', 'all', '--tag', tag, '--list')
        check(listed.returncode == 0 and len(listed.stdout.splitlines()) >= 8, tag, listed.stdout)
    check('batch=65536' not in listed.stdout, 'shapes for a GPU alone', listed.stdout)
    out = os.path.join(folder, 'rows.jsonl')
    result = run(*LINEAR, '--out', out)
    check(result.returncode == 0, result.stderr)
    lines = result.stdout.splitlines()
    check(all(len(line) <= 100 for line in lines[1:]), result.stdout)  # the first names the processor
    check(lines[3].split() == ['direction', 'kernel', 'median', 'us', 'spread', 'GFLOP/s', 'GB/s', 'plan', 'us', 'floor', 'x', 'plain'],
          lines[3])
    with open(out, encoding='utf-8') as file:
        written = [json.loads(line) for line in file]
    check(len(written) == len(lines) - 4, 'a record for each line of the table', len(written), result.stdout)


def comparison(folder):
    def file(name, rows):
        path = os.path.join(folder, name)
        with open(path, 'w', encoding='utf-8') as out:
            for kernel, median in rows:
                out.write(json.dumps({'op': 'softmax', 'case': 'softmax rows=1 columns=2', 'direction': 'forward', 'kernel': kernel,
                                      'dtype': 'f32', 'device': 'one', 'threads': 2, 'median_us': median, 'p10': median * 0.98,
                                      'p90': median * 1.02}) + '\n')
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
    prose = os.path.join(folder, 'prose')
    with open(prose, 'w', encoding='utf-8') as out:
        out.write('no JSON\n')
    for expected, path in (('No such file', os.path.join(folder, 'none')), ('c:1: expected a record', damaged),
                           ('prose:1: expected a record', prose)):
        result = run('bench', 'compare', before, path)
        check(result.returncode == 1 and expected in result.stderr and 'exception' not in result.stderr, result.stderr)
    result = run('bench', 'compare', before, file('d', (('three', 1),)))
    check(result.returncode == 2 and 'rows in common' in result.stderr, result.stderr)


class Page(html.parser.HTMLParser):
    """Elements of a page; each that is opened must be closed, in order."""
    VOID = {'meta', 'br', 'hr'}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        self.close()
        check(not self.open, 'never closed', self.open)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        check(self.open and self.open[-1] == tag, f'</{tag}> closes', self.open)
        self.open.pop()


def committed(folder):
    """The files that docs/bench.md quotes can be drawn and compared."""
    results = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'bench', 'results')
    files = [os.path.join(results, name) for name in sorted(os.listdir(results)) if name.startswith(('cpu_', 'cuda_'))]
    check(files, results)
    result = run('bench', 'report', *files, '--html', os.path.join(folder, 'all.html'))
    check(result.returncode == 0, result.stderr)
    for file in files:
        check(run('bench', 'compare', file, file).returncode == 0, file)


def written_whole(rows, page):
    def cut_off():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    link = page + '.link'
    os.symlink(page, link)
    result = run('bench', 'report', rows, '--html', link)
    check(result.returncode == 0 and os.path.islink(link), 'a link stays', result.stderr)
    os.symlink('not-yet.html', page + '.new')
    result = run('bench', 'report', rows, '--html', page + '.new')
    check(result.returncode == 0 and os.path.islink(page + '.new'), 'a link to nothing too', result.stderr)
    os.remove(page + '.new')
    with open(page, encoding='utf-8') as file:
        before = file.read()
    result = subprocess.run([TOOL, 'bench', 'report', rows, rows, '--html', page], capture_output=True, text=True, preexec_fn=cut_off)
    check(result.returncode == 1 and '--html: cannot write' in result.stderr, result)
    with open(page, encoding='utf-8') as file:
        check(file.read() == before, 'what stood there stays where the new page cannot be written whole')
    check(not [name for name in os.listdir(os.path.dirname(page)) if name.startswith('page.html.') and name != 'page.html.link'], 'rest')
    check(run('bench', 'report', rows, '--html', '/dev/stdout').stdout.startswith('<!doctype html>'), 'to a pipe')


def report(folder):
    rows, torch, page = (os.path.join(folder, name) for name in ('rows.jsonl', 'torch.jsonl', 'page.html'))
    check(run(*LINEAR, '--peers', '--out', rows).returncode == 0, 'rows')
    with open(rows, encoding='utf-8') as file, open(torch, 'w', encoding='utf-8') as out:
        for line in file:
            r = json.loads(line)
            if r['kernel'] == 'cpu.linear':
                out.write(json.dumps(r) + '\n')
                # Half as fast forward and twice as fast backward; a name that must not become an element.
                factor = 2 if r['direction'] == 'forward' else 0.5
                out.write(json.dumps(dict(r, kernel='torch.<b>&"', chosen=False, median_us=r['median_us'] * factor)) + '\n')
    result = run('bench', 'report', rows, torch, '--html', page)
    check(result.returncode == 0 and not result.stderr and not result.stdout, result.stdout, result.stderr)
    with open(page, encoding='utf-8') as file:
        text = file.read()
    parsed = Page(text)
    check(text.startswith('<!doctype html>') and parsed.tags.count('svg') == 2 + 2 + 1, parsed.tags)  # bars of four problems, a roofline
    with open(rows, encoding='utf-8') as file:
        check(parsed.tags.count('rect') == len(file.readlines()) + 4, 'a bar for each record', parsed.tags.count('rect'))
    for tag in ('script', 'link', 'img', 'iframe', 'b'):
        check(tag not in parsed.tags, tag)
    check(not any(name in ('href', 'src', 'xlink:href') or 'http' in (value or '') for name, value in parsed.attributes), 'a link')
    check('url(' not in text and '@import' not in text and 'prefers-color-scheme:dark' in text, 'style')
    check('<td>forward</td><td>PyTorch</td><td>1</td><td>1</td><td>0</td><td>2.00</td>' in text, 'a win')
    check('<td>backward</td><td>PyTorch</td><td>1</td><td>0</td><td>1</td><td>0.50</td>' in text, 'a loss')
    for expected, arguments in (('--html', (rows,)), ('files', ('--html', page)), ('No such file', ('/none', '--html', page)),
                                ('cannot write', (rows, '--html', '/nowhere/page')),
                                ('--html: expected the name of a file', (rows, '--html', '')),
                                ('expected at least one record', ('/dev/null', '--html', page))):
        result = run('bench', 'report', *arguments)
        check(result.returncode != 0 and expected in result.stderr, arguments, result.stderr)
    written_whole(rows, page)


def cards():
    """What is asked of a card is listed anywhere, and said to be missing where there is none."""
    listed = run('bench', 'attention', '--story', '--list').stdout.splitlines()
    check(len(listed) == 36 and listed[0] == 'attention batch=32 queries=512 keys=512 heads=32 head_dim=64 dtype=f16', listed)
    listed = run('bench', 'all', '--device', 'cuda:0', '--list').stdout
    check('outputs=33708 dtype=f16 rows=preferred' in listed and 'gnmt' not in listed, listed)
    for arguments in (('linear', '--device', 'cuda:0', '--peers'), ('attention', '--story')):
        result = run('bench', *arguments, CUDA_VISIBLE_DEVICES='')
        check(result.returncode == 1 and '--device cuda:0: CUDA' in result.stderr and not result.stdout, arguments, result)
    kernel = run('bench', 'linear', '--kernel', 'cuda' if 'CUDA not built' in run('info').stdout else 'cublaslt.linear', *LINEAR[2:])
    check(kernel.returncode == 2 and 'none of them accepts' in kernel.stderr, kernel)


def linear_options():
    sizes = ('--batch', '4', '--inputs', '15', '--outputs', '7', *SMALL)
    inference = records('bench', 'linear', *sizes, '--training', '0', '--activation', 'relu', '--peers')
    check({r['direction'] for r in inference} == {'forward'}, inference)
    apart = records('bench', 'linear', *sizes, '--rows', 'preferred', '--peers')
    schema(apart)
    check(apart[0]['bytes'] == 4 * (4 * 15 + 4 * 7 + 15 * 7) and not any(r['kernel'].startswith('peer.') for r in apart), apart)
    moved = records('bench', 'copy', '--bytes', '65536', *SMALL)
    schema(moved)
    check([(r['kernel'], r['bytes']) for r in moved] == [('copy', 131072)], moved)


def progress():
    """A bar on a terminal, gone at the end; nothing elsewhere."""
    try:
        main, terminal = pty.openpty()
    except OSError as fault:
        print(f'left out: the bar on a terminal ({fault})')
        return
    with subprocess.Popen([TOOL, *LINEAR], stdout=subprocess.PIPE, stderr=terminal) as process:
        process.communicate(timeout=280)
    os.close(terminal)
    shown = b''
    try:
        while part := os.read(main, 4096):
            shown += part
    except OSError:
        pass  # the other end is closed
    os.close(main)
    check('case 0 of 1 ░' in shown.decode() and shown.endswith(b'\r\x1b[K'), shown)
    check(run(*LINEAR).stderr == '', 'no terminal')


def wrong_arguments():
    for expected, arguments in (('--inputs, --outputs too', ('linear', '--batch', '4')),
                                ('--batch: expected a whole number', ('linear', '--batch', '-1')),
                                ('--kernel: expected one of', ('linear', '--kernel', 'cpu.softmax_online')),
                                ('no case of linear with the tag "bench" holds "x=y"', ('linear', '--filter', 'x=y')),
                                ('--tag: expected bench or card or headline or users, got "all"', ('linear', '--tag', 'all')),
                                ('--device: expected cpu or cuda:N, got "tpu"', ('linear', '--device', 'tpu')),
                                ('--device: expected cpu, where the translation model', ('gnmt', '--device', 'cuda:0')),
                                ('--story: expected --device cuda:N, got cpu', ('attention', '--story', '--device', 'cpu')),
                                ('--graphs: expected --device cuda:N, got cpu', ('linear', '--graphs')),
                                ('--story: expected no --dtype f32', ('attention', '--story', '--dtype', 'f32')),
                                ('no case of the story holds', ('attention', '--story', '--list', '--filter', 'head_dim=7')),
                                ('rows: expected one of dense, preferred, got "3"', (*LINEAR[1:], '--rows', '3')),
                                ('lengths: expected one of none, random, full, zero, got "3"', (*RECURRENT, '--lengths', '3')),
                                ('projection', (*RECURRENT, '--cell', 'gru', '--projection', '2')),
                                ('expected length of at least 1, or text=numbers', GNMT),
                                ('expected length of at least 1, or text=numbers', (*GNMT, '--length', '2', '--text', 'numbers')),
                                ('vocabulary: expected at least', (*GNMT, '--text', 'numbers')),
                                ('text: expected one of random, numbers, got "prose"', (*GNMT, '--text', 'prose')),
                                ('has forward, backward, got "sideways"', (*LINEAR[1:], '--direction', 'sideways')),
                                ('activation: expected one of none, relu', (*LINEAR[1:], '--activation', 'tanh')),
                                ('--dtype: expected f32, f16 or bf16, got "f99"', (*LINEAR[1:], '--dtype', 'f99')),
                                ('--dtype: expected f32, f16 or bf16, got "i32"', (*LINEAR[1:], '--dtype', 'i32')),
                                ('cannot write', (*LINEAR[1:], '--out', '/nowhere/x')),
                                ('--out: expected the name of a file', (*LINEAR[1:], '--out', ''))):
        result = run('bench', *arguments)
        check(result.returncode == (1 if '/nowhere/x' in arguments else 2) and expected in result.stderr, arguments, result.stderr)
        check('terminate' not in result.stderr and len(result.stderr.splitlines()) <= 4, result.stderr)


explicit_problems()
expectations()
recurrent_options()
attention_options()
model()
threads()
peers()
cards()
linear_options()
progress()
with tempfile.TemporaryDirectory() as temporary:
    tables(temporary)
    comparison(temporary)
    report(temporary)
    committed(temporary)
wrong_arguments()
print('bench: all well')

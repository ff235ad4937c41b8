# everglow probe, its kept figures, everglow plan --measure and --self-test: JSON against the schema, when figures count, and what is
# printed. How good a prediction is depends on the machine and on what else it does: no test looks at that.
# Usage: probe_test.py TOOL
import json
import os
import subprocess
import sys
import tempfile

from plan_schema import SCHEMA, check, faults

TOOL = sys.argv[1]
LINEAR = ('plan', 'linear', '--batch', 8, '--inputs', 64, '--outputs', 32)
RECURRENT = ('plan', 'recurrent', '--cell', 'gru', '--steps', 4, '--batch', 3, '--inputs', 8, '--hidden', 20)
ATTENTION = ('plan', 'attention', '--batch', 2, '--queries', 9, '--keys', 12, '--heads', 2, '--head-dim', 16)


class Tool:
    """The tool with a cache folder of its own."""

    def __init__(self, cache):
        self.file = os.path.join(cache, 'everglow', 'probe.json')
        self.environment = {**os.environ, 'XDG_CACHE_HOME': cache, 'EVERGLOW_THREADS': '2'}
        self.environment.pop('EVERGLOW_ISA', None)

    def run(self, *arguments, **environment):
        return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, timeout=200, env={**self.environment, **environment})

    def json(self, *arguments, **environment):
        result = self.run(*arguments, '--json', **environment)
        check(result.returncode == 0 and not result.stderr, arguments, result.returncode, result.stderr)
        value = json.loads(result.stdout)
        found = faults(value, SCHEMA)
        check(not found, arguments, found[:5])
        return value

    def text(self, *arguments):
        result = self.run(*arguments)
        check(result.returncode == 0 and not result.stderr, arguments, result.returncode, result.stderr)
        text = result.stdout.decode()
        check(all(len(line) <= 100 for line in text.splitlines()), arguments, 'a line of more than 100 columns')
        return text

    def figures(self, **environment):
        return self.json(*LINEAR, **environment)['figures']

    def kept(self):
        with open(self.file, encoding='utf-8') as file:
            return json.load(file)

    def keep(self, content):
        with open(self.file, 'w', encoding='utf-8') as file:
            file.write(content)


def kept_figures(tool):
    check(tool.figures() == 'estimated', 'nothing is measured yet')
    check('estimated' in tool.text(*LINEAR), 'the table says so')
    probe = tool.json('probe')['probe']
    check(os.listdir(os.path.dirname(tool.file)) == ['probe.json'], 'one file, and nothing left beside it')
    kept = tool.kept()
    for name in ('cpu', 'isa', 'threads'):
        check(kept[name] == probe[name], name, kept[name], probe[name])
    check(kept['figures'] == probe['figures'] and kept['threads'] == 2, 'the figures are those that were shown')
    check(all(level['one_gbs'] > 0 and level['all_gbs'] > 0 for level in probe['levels']), probe['levels'])
    for name in ('f32_tflops', 'bandwidth_gbs', 'own.f32.forward.multiply_ns', 'step.f32.multiply_ns', 'exponential_ns'):
        check(probe['figures'][name] > 0, name, probe['figures'][name])
    check(tool.figures() == 'measured' and 'measured, 2 threads' in tool.text(*LINEAR), 'plans use them')
    check(tool.json(*LINEAR, '--sweep', 'batch=1,2')['figures'] == 'measured', 'a sweep too')
    # Bandwidth in the plan is what the file says.
    halved = {**kept, 'figures': {name: value / 2 if 'bandwidth_gbs' in name else value for name, value in kept['figures'].items()}}
    ridge = tool.json(*LINEAR)['gemms'][0]['ridge']
    tool.keep(json.dumps(halved))
    check(tool.json(*LINEAR)['gemms'][0]['ridge'] > 1.9 * ridge, 'the bandwidth of the file counts')


def figures_that_do_not_count(tool):
    kept = tool.kept()
    for name, other in (('cpu', 'another CPU'), ('isa', 'sse'), ('threads', 3), ('version', '0.0.0')):
        tool.keep(json.dumps({**kept, name: other}))
        check(tool.figures() == 'estimated', name, 'differs')
    for content in ('', '{', '[]', '{"figures": 1}', json.dumps({**kept, 'figures': {}}),
                    json.dumps({**kept, 'figures': {**kept['figures'], 'units': 'two'}}),
                    json.dumps({**kept, 'figures': {**kept['figures'], 'bandwidth_gbs': -1}})):
        tool.keep(content)
        check(tool.figures() == 'estimated', content[:60])
    tool.keep(json.dumps(kept))
    check(tool.figures() == 'measured', 'the same file counts again')
    check(tool.figures(EVERGLOW_THREADS='1') == 'estimated', 'another number of threads')
    check(tool.figures(EVERGLOW_ISA='portable') == 'estimated' or kept['isa'] == 'portable', 'another instruction set')
    os.remove(tool.file)
    check(tool.text('probe', '--forget').count('kept in') == 0 and not os.path.exists(tool.file), '--forget')
    text = tool.text('probe')
    for part in ('f32 product', 'read L1', 'read memory', 'hidden unit', 'kept in'):
        check(part in text, part, 'in', text)
    folder = os.path.join(tool.file, 'is a file')  # nothing can be made below a file
    result = tool.run('probe', '--json', XDG_CACHE_HOME=folder)
    check(result.returncode == 1 and b'cannot write' in result.stderr, result)


def measured_layers(tool):
    for plan, passes in ((LINEAR, ['forward', 'activation_gradient', 'weight_gradient']),
                         ((*LINEAR, '--activation', 'silu', '--dtype', 'bf16'), ['forward', 'backward']),
                         ((*LINEAR, '--inference'), ['forward']), ((*RECURRENT, '--layers', 2, '--lengths'), ['forward', 'backward']),
                         ((*ATTENTION, '--causal'), ['forward', 'backward'])):
        value = tool.json(*plan, '--measure')
        check([p['pass'] for p in value['measured']] == passes and value['figures'] == 'measured', plan, value['measured'])
        total = sum(p['predicted_us'] for p in value['measured'])
        check(abs(total - value['time_us']) <= 1e-6 * total, plan, 'predictions of the passes sum up to the time', total)
        for p in value['measured']:
            check(p['measured_us'] > 0 and abs(p['predicted_us'] / p['measured_us'] - 1 - p['error']) < 1e-6, plan, p)
            check(p['p10'] <= p['p90'], plan, p)
    text = tool.text(*ATTENTION, '--measure')
    for part in ('predicted', 'measured', 'p10 to p90', 'error', 'operands from memory'):
        check(part in text, part, 'in', text)
    points = tool.json(*LINEAR, '--sweep', 'batch=4,8', '--measure')['sweep']
    check(all(p['measured_us'] > 0 and 'error' in p for p in points), points)
    check('measured' in tool.text(*LINEAR, '--sweep', 'batch=4,8', '--measure'), 'the table of a sweep')
    for arguments in ((*LINEAR, '--measure', '--device', 'h200'), ('plan', 'gnmt', '--measure'), ('plan', '--problems', 3)):
        result = tool.run(*arguments)
        check(result.returncode == 2 and not result.stdout, arguments, result.returncode, result.stderr)
    large = tool.run('plan', 'linear', '--batch', 1, '--inputs', 9000000, '--outputs', 9000000, '--measure')
    check(large.returncode == 1 and b'at most half of' in large.stderr, large.stderr)


def self_test(tool, folder):
    file = os.path.join(folder, 'rows.jsonl')
    value = tool.json('plan', '--self-test', '--problems', 1, '--out', file)['self_test']
    rows = [(row['layer'], row['pass']) for row in value['rows']]
    check(rows == [('linear', 'forward'), ('linear', 'activation_gradient'), ('linear', 'weight_gradient'), ('recurrent', 'forward'),
                   ('recurrent', 'backward'), ('attention', 'forward'), ('attention', 'backward')], rows)
    with open(file, encoding='utf-8') as lines:
        written = [json.loads(line) for line in lines]
    check([row['direction'] for row in written] == [row['pass'] for row in value['rows']], written)
    for row, other in zip(written, value['rows']):
        check(row['case'] == other['case'] and abs(row['error'] - other['error']) < 1e-3 and row['commit'], row)
    text = tool.text('plan', '--self-test', '--problems', 1)
    check('median error' in text and text.count('forward') == 3, text)
    none = tool.run('plan', '--self-test', '--problems', 0)
    check(none.returncode == 2 and b'--problems: expected' in none.stderr and not none.stdout, none)


with tempfile.TemporaryDirectory() as scratch:
    one = Tool(os.path.join(scratch, 'cache'))
    kept_figures(one)
    figures_that_do_not_count(one)
    measured_layers(one)
    self_test(one, scratch)
print('ok')

# everglow plan as programs and people meet it: JSON against docs/plan.schema.json, tables of at most 100 columns, wrong arguments,
# devices from files, sweeps, and random command lines, none of which may crash.
# Usage: plan_test.py TOOL
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from plan_schema import SCHEMA, check, faults

TOOL = sys.argv[1]


def run(*arguments):
    return subprocess.run([TOOL, 'plan', *map(str, arguments)], capture_output=True, timeout=60)


def refuse_constant(name):
    raise ValueError(f'{name} is no JSON')


def planned(*arguments):
    """The JSON of a plan that must succeed and keep to the schema."""
    result = run(*arguments, '--json')
    check(result.returncode == 0 and not result.stderr, arguments, result.returncode, result.stderr)
    value = json.loads(result.stdout, parse_constant=refuse_constant)
    found = faults(value, SCHEMA)
    check(not found, arguments, found[:5])
    return value


def shown(*arguments):
    result = run(*arguments)
    check(result.returncode == 0 and not result.stderr, arguments, result.returncode, result.stderr)
    text = result.stdout.decode()
    for line in text.splitlines():
        check(len(line) <= 100, arguments, len(line), line)
    return text


def refused(parts, *arguments, status=2):
    result = run(*arguments)
    text = result.stderr.decode(errors='replace')
    check(result.returncode == status and not result.stdout, arguments, result.returncode, text)
    for part in parts:
        check(part in text, arguments, 'expected', repr(part), 'in', text)


LINEAR = ('linear', '--batch', 5120, '--inputs', 1024, '--outputs', 33708)
RECURRENT = ('recurrent', '--cell', 'lstm', '--steps', 256, '--batch', 64, '--inputs', 1024, '--hidden', 1024)
ATTENTION = ('attention', '--batch', 4, '--queries', 4096, '--keys', 4096, '--heads', 16, '--head-dim', 128)
GNMT = ('gnmt', '--hidden', 1024, '--layers', 4, '--vocab', 33708, '--batch', 128, '--length', 50)
DEVICES = ('v100-16', 't4', 'a100-40', 'a100-80', 'rtx4090', 'l4', 'l40s', 'h100-sxm', 'h100-pcie', 'h200', 'b200', 'cpu')


def layers():
    for device in DEVICES:
        for plan in (LINEAR, RECURRENT, ATTENTION, GNMT):
            check(planned(*plan, '--device', device)['device'] == device, plan, device)
            shown(*plan, '--device', device)
    odd = planned(*LINEAR, '--device', 'h200', '--dtype', 'f16')
    first = odd['advice'][0]
    check((first['kind'], first['dimension'], first['from'], first['to']) == ('size', 'outputs', 33708, 33712), first)
    check(abs(first['gain'] - 2.8) < 0.1, first)
    check(odd['kernel'] in (None, 'cublaslt.linear') and odd['gemms'][0]['alignment_bytes'] == 8 and odd['alignment_needed'] == 16, odd['gemms'][0])
    check('2.8' in shown(*LINEAR, '--device', 'h200') and 'y of forward' in shown(*LINEAR, '--device', 'h200'), 'the odd table')
    wave = planned('linear', '--batch', 1544, '--inputs', 4096, '--outputs', 2304, '--tile', '256x128', '--device', 'a100-40')
    check(abs(wave['gemms'][0]['waves'] - 1.083) < 5e-4 and wave['gemms'][0]['tile'] == '256x128', wave['gemms'][0])
    classical = planned(*RECURRENT, '--device', 'v100-16', '--dtype', 'f16')
    check(classical['peers']['cudnn_persist_static']['eligible'] and classical['residency']['resident'], classical['peers'])
    single = planned(*RECURRENT, '--device', 'v100-16', '--dtype', 'f32')
    check(not single['peers']['cudnn_persist_static']['eligible'], single['peers'])
    algorithms = planned(*ATTENTION, '--causal', '--device', 'a100-80', '--dtype', 'bf16')['algorithms']
    check(algorithms['flash2']['time_us'] < algorithms['flash1']['time_us'] < algorithms['standard']['time_us'], algorithms)
    check(algorithms['flash2']['bytes'] < algorithms['flash1']['bytes'] < algorithms['standard']['bytes'], algorithms)
    words = [a for a in planned(*GNMT, '--device', 'h200', '--dtype', 'f16')['advice'] if a['dimension'] == 'vocabulary']
    check(len(words) == 1 and words[0]['to'] == 33712, words)
    for layout in ('pytorch', 'caffe', 'tensorflow', 'keras', 'jax'):
        gemm = planned(*LINEAR, '--layout', layout, '--device', 'h200')['gemms'][0]
        check(gemm['transpose_a'] == (layout in ('pytorch', 'caffe')), layout, gemm)
    check(len(planned(*LINEAR, '--inference')['gemms']) == 1, 'inference')
    check('grid' in shown(*RECURRENT, '--device', 'h200', '--dtype', 'bf16'), 'residency')


def wrong_arguments():
    refused(('expected a command (linear, recurrent, attention, gnmt), got none', 'example: everglow plan'))
    refused(('--inputs: expected a whole number of at least 0, got none; for example --inputs 1024',), 'linear', '--batch', 3)
    refused(('--batch', 'expected a whole number', 'got "many"', 'for example --batch 4096'), 'linear', '--batch', 'many')
    refused(('h200', 'got "h900"'), *LINEAR, '--device', 'h900')
    if b'cuda: not usable' in subprocess.run([TOOL, 'info'], capture_output=True, check=True, timeout=60).stdout:
        refused(('--device cuda:0: ', 'by its name, for example --device h200'), *LINEAR, '--device', 'cuda:0', status=1)
    refused(('--tile', 'MxN', '256x128'), *LINEAR, '--tile', '256')
    refused(('--dtype', 'f32, f16, bf16 or f64', 'got "i32"'), *LINEAR, '--dtype', 'i32')
    refused(('--layout', 'pytorch or caffe'), *LINEAR, '--layout', 'fortran')
    refused(('--sweep', 'one of batch, inputs, outputs', 'for example'), *LINEAR, '--sweep', 'rows=1:2:x2')
    refused(('--sweep', 'FROM:TO'), *LINEAR, '--sweep', 'batch=1:2')
    refused(('--html', '--sweep'), *LINEAR, '--html', 'x.html')
    refused(('no such option', '--cell'), *RECURRENT, '--size', 3)
    refused(('force: expected one of', 'cpu.linear'), *LINEAR, '--kernel', 'cpu.nothing')


def devices_from_files(folder):
    def file(content):
        path = os.path.join(folder, 'device.json')
        with open(path, 'w', encoding='utf-8') as out:
            out.write(content)
        return path

    own = file('{"based_on": "h200", "name": "mine", "bandwidth_gbs": 2400}')
    plan = planned(*LINEAR, '--device', own)
    check(plan['device'] == 'mine' and abs(plan['gemms'][0]['ridge'] - 2 * 206.1) < 1, plan['device'], plan['gemms'][0]['ridge'])
    planned(*RECURRENT, '--device', file('{"units": 10, "f32_tflops": 1, "bandwidth_gbs": 100}'))
    for content, part in (('{"units": 10}', 'f32_tflops: expected it'), ('[1]', 'expected an object'), ('{', 'expected JSON'),
                          ('{"based_on": "h200", "colour": 1}', 'colour: no such field; expected name, based_on, units'),
                          ('{"based_on": "h200", "units": 1.5}', 'units: expected a whole number'),
                          ('{"based_on": "h200", "units": 0}', 'above 0'), ('{"based_on": "h900"}', 'got "h900"')):
        refused((part,), *LINEAR, '--device', file(content))
    check(run(*LINEAR, '--device', os.path.join(folder, 'none.json')).returncode == 1, 'a file that is not there')


def sweeps(folder):
    page = os.path.join(folder, 'sweep.html')
    arguments = ('linear', '--inputs', 4096, '--outputs', 4096, '--device', 'h200', '--sweep', 'batch=1:4096:x2')
    points = planned(*arguments, '--html', page)['sweep']
    check([p['sizes']['batch'] for p in points] == [2 ** i for i in range(13)], points)
    check(sum(p['knee'] for p in points) == 1, 'one knee')
    with open(page, encoding='utf-8') as file:
        html = file.read()
    check(html.count('<svg') == 3 and 'knee' in html and 'ridge' in html, 'the charts')
    check(not re.search(r'(src|href)\s*=|url\(|https?:', html), 'one page without links')
    check('<- knee' in shown(*arguments), 'the table')
    both = planned(*RECURRENT, '--sweep', 'hidden=256,512', '--sweep', 'batch=8:24:+8')['sweep']
    check([tuple(p['sizes'].values()) for p in both] == [(h, b) for b in (8, 16, 24) for h in (256, 512)], both)
    planned(*GNMT, '--sweep', 'batch=32:128:x2', '--device', 'h200')
    planned(*ATTENTION, '--sweep', 'keys=128:1024:x2')


def random_lines(count):
    """A command line is either understood, with output that keeps to the schema, or refused in words: nothing else may happen."""
    source = random.Random(5)
    numbers = ['0', '1', '2', '7', '8', '63', '64', '129', '1000', '1023', '4096', '65537', '999999999999', '-1', '1e3', '', 'x']
    options = {
        'linear': ['--batch', '--inputs', '--outputs'],
        'recurrent': ['--steps', '--batch', '--inputs', '--hidden', '--layers', '--projection'],
        'attention': ['--batch', '--queries', '--keys', '--heads', '--kv-heads', '--head-dim', '--value-dim', '--window'],
        'gnmt': ['--hidden', '--layers', '--vocab', '--batch', '--length'],
    }
    words = {'--device': [*DEVICES, 'cuda:0', 'cuda:x', 'nothing', ''], '--dtype': ['f32', 'f16', 'bf16', 'f64', 'half', 'i32', 'q'],
             '--math': ['ieee', 'tf32', 'no'], '--threads': ['1', '2', '4096', '0'], '--kernel': ['reference.linear', 'x'],
             '--tile': ['64x64', '256x128', '1x1', '65536x65536', '0x1', 'ax2'], '--cell': ['lstm', 'gru', 'gru_reset_before', 'tanh', 'relu'],
             '--layout': ['pytorch', 'keras'], '--activation': ['gelu_erf', 'none'],
             '--sweep': ['batch=1:64:x4', 'batch=0,1', 'hidden=5', 'batch=:', '=', 'batch=1:999999999999:+1', 'heads=0']}
    flags = ['--json', '--inference', '--bidirectional', '--causal', '--lengths', '--resets', '--deterministic', '--help', '--nothing']
    understood = 0
    for _ in range(count):
        layer = source.choice(list(options))
        line = [layer]
        for option in options[layer]:
            if source.random() < 0.95:
                line += [option, source.choice(numbers if source.random() < 0.1 else numbers[2:12])]
        for option, values in words.items():
            if source.random() < 0.15:
                line += [option, source.choice(values)]
        line += [flag for flag in flags if source.random() < 0.1]
        result = run(*line)
        text = result.stderr.decode(errors='replace')
        check(result.returncode in (0, 1, 2), line, result.returncode, text)
        if result.returncode != 0:
            check(text.startswith('everglow') and not result.stdout, line, text)
            continue
        understood += 1
        if '--json' in line and '--help' not in line:
            found = faults(json.loads(result.stdout, parse_constant=refuse_constant), SCHEMA)
            check(not found, line, found[:5])
    check(understood > count / 20, understood, 'of', count, 'lines understood')


with tempfile.TemporaryDirectory() as scratch:
    layers()
    wrong_arguments()
    devices_from_files(scratch)
    sweeps(scratch)
    random_lines(250)
print('ok')

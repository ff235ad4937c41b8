# Trains a translator with the tool and keeps what it reached as one line of JSON: the demo (number words, time to 99 % exact), or,
# with the path to TSV files, the figure of the README.
# Usage: python3 bench/train.py [--data FOLDER [--minutes M]] [--seed N] [--threads N] [--program FILE] [--out FILE] [-- OPTION...]
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VALIDATION = re.compile(r'^step [\d]+ after [\d:]+: validation loss ([\d.]+), BLEU ([\d.]+), exact ([\d.]+) %')
TRAINED = re.compile(r'^(?:trained )?([\d,]+) steps, ([\d,]+) tokens in ([\d:]+)$')
BLEU = re.compile(r'^test BLEU ([\d.]+) \((.*)\)$')
EXACT = re.compile(r'^exact: (\d+) of (\d+)$')


def arguments():
    parser = argparse.ArgumentParser(description='Train a translator and keep what it reached.')
    parser.add_argument('--data', metavar='FOLDER', help='holds train.tsv, valid.tsv, test.tsv; without it: the demo')
    parser.add_argument('--minutes', type=float, help='length of a run on --data (20)')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--threads', type=int, help='CPU threads (all cores)')
    parser.add_argument('--program', default=os.path.join(ROOT, 'build/cpu/everglow'))
    parser.add_argument('--out', default=os.path.join(ROOT, 'bench/results/train.jsonl'), help='gets one line more')
    parser.add_argument('options', nargs='*', metavar='OPTION',
                        help='after --: of everglow train, in place of --max-words 8 (with --data), or of everglow demo')
    chosen = parser.parse_args()
    if chosen.minutes is not None and (not chosen.data or chosen.minutes <= 0):
        parser.error('--minutes: expected a number above 0, together with --data FOLDER')
    if not os.access(chosen.program, os.X_OK):
        parser.error(f'--program: no program at {chosen.program}; ./demo --build makes it')
    for name in ('train.tsv', 'valid.tsv', 'test.tsv') if chosen.data else ():
        if not os.path.exists(os.path.join(chosen.data, name)):
            parser.error(f'--data: expected {name} in {chosen.data}')
    return chosen


def git(*words):
    found = subprocess.run(('git', '-C', ROOT) + words, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ''


def machine(program):
    """What `everglow info` says of the processor, and its model."""
    lines = subprocess.run((program, 'info'), capture_output=True, text=True, check=True).stdout.splitlines()
    info = {key.strip(): value.strip() for key, value in (line.split('  ', 1) for line in lines if '  ' in line)}
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        model = [line.split(':', 1)[1].strip() for line in file if line.startswith('model name')]
    return (model or ['cpu'])[0], info.get('chosen', ''), int(info.get('cores', 1))


def card(program):
    """The first card as `everglow info` names it."""
    text = subprocess.run((program, 'info'), capture_output=True, text=True, check=True).stdout
    found = re.search(r'card[^:\n]*: (.+?) of compute capability', text)
    return found.group(1) if found else 'cuda'


def seconds_of(clock):
    total = 0
    for part in clock.split(':'):
        total = 60 * total + int(part)
    return total


def follow(command):
    """Runs the command, shows its lines, and returns what they say; times are counted from its start."""
    found, start = {}, time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding='utf-8') as process:
        for line in process.stdout:
            print(line, end='', flush=True)
            line = line.strip()
            validation, trained, bleu, exact = (pattern.match(line) for pattern in (VALIDATION, TRAINED, BLEU, EXACT))
            if validation and float(validation.group(3)) >= 99:
                found.setdefault('seconds_to_99', round(time.monotonic() - start, 2))
            if trained:
                steps, tokens = (int(text.replace(',', '')) for text in trained.group(1, 2))
                seconds = seconds_of(trained.group(3))
                found.update(seconds=seconds, steps=steps, tokens=tokens, tokens_per_second=round(tokens / max(seconds, 1)))
            if bleu:
                found.update(bleu=float(bleu.group(1)), bleu_signature=bleu.group(2))
            if exact:
                found.update(exact=int(exact.group(1)), exact_of=int(exact.group(2)))
    found['seconds_with_test'] = round(time.monotonic() - start, 2)
    if 'tokens' not in found:
        sys.exit(f'train.py: {os.path.basename(command[0])} ended with {process.returncode} and did not say what it trained')
    found['status'] = process.returncode
    return found


def main():
    chosen = arguments()
    device, isa, cores = machine(chosen.program)
    threads = chosen.threads or cores
    if any(option.startswith('cuda') or option.startswith('--device=cuda') for option in chosen.options):
        device, isa = card(chosen.program), 'cuda'
    common = ['--seed', str(chosen.seed), '--threads', str(threads)]
    with tempfile.TemporaryDirectory() as out:
        if chosen.data:
            length = ['--minutes', f'{chosen.minutes or 20:g}'] + chosen.options
            if not chosen.options:
                length = ['--max-words', '8'] + length
            files = []
            for part in ('train', 'valid', 'test'):
                files += [f'--{part}', os.path.join(chosen.data, f'{part}.tsv')]
            case = ' '.join(['train', os.path.basename(os.path.abspath(chosen.data))] + length)
            command = [chosen.program, 'train'] + files + length + common + ['--out', out]
        else:
            case = ' '.join(['demo'] + chosen.options)
            command = [chosen.program, 'demo'] + chosen.options + common + ['--out', out]
        found = follow(command)
    record = {'op': 'train', 'case': case, 'seed': chosen.seed, 'device': device, 'isa': isa, 'threads': threads,
              'commit': git('rev-parse', '--short=12', 'HEAD') or 'unknown',
              'dirty': bool(git('status', '--porcelain', '--untracked-files=no')),
              'date': datetime.datetime.now(datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ'), **found}
    os.makedirs(os.path.dirname(os.path.abspath(chosen.out)), exist_ok=True)
    with open(chosen.out, 'a', encoding='utf-8') as file:
        file.write(json.dumps(record) + '\n')
    print(f'added to {chosen.out}')
    return found['status']


if __name__ == '__main__':
    sys.exit(main())

# Train, translate and score end to end on a tiny corpus; an interrupted run goes on; wrong arguments and damaged files are named.
# Usage: train_test.py TOOL
import os
import re
import signal
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]


def run(*arguments, stdin=''):
    return subprocess.run([TOOL, *arguments], input=stdin, capture_output=True, text=True, encoding='utf-8', timeout=240)


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


def good(*arguments, stdin=''):
    result = run(*arguments, stdin=stdin)
    check(result.returncode == 0, arguments, result.returncode, result.stdout, result.stderr)
    return result.stdout


def refused(parts, *arguments, status=2, begun=False):
    result = run(*arguments)
    check(begun or not result.stdout, arguments, 'it says that it begins', result.stdout)
    check(result.returncode == status, arguments, result.returncode, result.stdout, result.stderr)
    for part in parts:
        check(part in result.stderr, arguments, 'expected', repr(part), 'in', result.stderr)


def write(path, text):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
    return path


def end_to_end(folder, common):
    out = os.path.join(folder, 'whole')
    lines = good('train', *common, '--out', out, '--steps', '12').splitlines()
    check('starting' in lines[0], lines[0])
    check(any('validation loss' in line and 'BLEU' in line for line in lines), lines)
    check(any('tok/s' in line and 'padding' in line and 'left' in line for line in lines), lines)
    check(re.fullmatch(r'test BLEU \d+\.\d\d \(13a, beam 5, 5 lines\)', lines[-1]), lines[-1])
    sources = 'one\n\ntwenty-two\n'
    translated = good('translate', '--model', out, '--beam', '2', stdin=sources)
    check(translated.count('\n') == 3 and translated.split('\n')[1] == '', repr(translated))
    hypotheses = write(os.path.join(folder, 'hypotheses'), translated)
    references = write(os.path.join(folder, 'references'), 'un\n\nvingt-deux\n')
    check(good('score', hypotheses, references).startswith('BLEU = '), 'score')
    check(lines[-2] == f'everglow translate --model {out} translates with it', lines)
    for fewer in ('12', '5'):
        again = good('train', *common, '--out', out, '--steps', fewer).splitlines()
        check('going on' in again[0] and again[-1] == lines[-1], again)
        check(f'nothing left to do: {out} has trained its 12 steps; a longer --steps' in again[-3], again)
    return out


def sixteen_bits(folder, common):
    """f16 on the CPU: the loss scale is told, kept in the checkpoint, and a run of another type does not go on."""
    out = os.path.join(folder, 'f16')
    lines = good('train', *common, '--out', out, '--steps', '4', '--precision', 'f16').splitlines()
    check(any('loss scale 65536, 0 skipped' in line for line in lines), lines)
    check(lines[-1].startswith('test BLEU'), lines)
    refused(['precision: expected f16', 'got f32'], 'train', *common, '--out', out, '--steps', '5', begun=True)
    check(good('translate', '--model', out, stdin='one\n').count('\n') == 1, 'a model of f16 translates')


def nothing_to_test(folder, common):
    """The last line speaks of the test even where there is none."""
    nothing = write(os.path.join(folder, 'nothing.tsv'), '')
    without = [nothing if before in ('--test', '--valid') else value for before, value in zip(['', *common], common)]
    lines = good('train', *without, '--out', os.path.join(folder, 'untested'), '--steps', '2').splitlines()
    check(lines[-1] == 'test BLEU: no test lines', lines)
    check(lines[1].startswith('no validation pairs') and '--valid TSV' in lines[1], lines)
    check(any('there are no validation pairs' in line for line in lines[2:]) and 'validation loss' not in '\n'.join(lines), lines)


def interrupted(folder, common, whole):
    out = os.path.join(folder, 'parts')
    command = [TOOL, 'train', *common, '--out', out, '--steps', '1000000']
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding='utf-8') as process:
            for line in process.stdout:
                if line.startswith('epoch'):
                    process.send_signal(number)
                    break
            rest = process.stdout.read()
            check(process.wait(timeout=120) == 128 + number, number, process.returncode, rest)
        check('stopped and saved' in rest, rest)
    last = os.path.join(out, 'last.safetensors')
    check(os.path.exists(last), 'a checkpoint after the signal')
    wider = ['32' if before == '--hidden' else value for before, value in zip(['', *common], common)]
    refused(['hidden: expected 16', 'got 32'], 'train', *wider, '--out', out, '--steps', '12', begun=True)
    with open(last, 'r+b') as file:
        file.truncate(os.path.getsize(last) // 2)
    refused([last], 'train', *common, '--out', out, '--steps', '12', status=1, begun=True)
    for name in ('best.safetensors', 'last.safetensors'):
        with open(os.path.join(whole, name), 'r+b') as file:
            file.write(b'\xff' * 8)
    result = run('translate', '--model', whole)
    check(result.returncode == 1 and 'best.safetensors' in result.stderr, result.returncode, result.stderr)


def under_signals(folder):
    """Thousands of handled signals do no harm: no kernel lets their frames fall into the heap."""
    library = os.environ.get('EVERGLOW_SIGNALS')
    check(library, 'EVERGLOW_SIGNALS: the library that interrupts a program')
    out = os.path.join(folder, 'signals')
    # With its bound on waits set, the tool does not start itself anew: the timer would outlive the handler.
    environment = {**os.environ, 'LD_PRELOAD': library, 'GOMP_SPINCOUNT': '3000'}
    result = subprocess.run([TOOL, 'train', '--corpus', 'numbers', '--out', out, '--steps', '60'], capture_output=True, text=True,
                            encoding='utf-8', timeout=240, env=environment)
    check(result.returncode == 0, result.returncode, result.stdout, result.stderr)


def wrong_arguments(folder, pairs):
    out = ['--out', os.path.join(folder, 'never')]
    refused(['--out'], 'train', '--train', pairs)
    refused(['expected one of --train', 'for example'], 'train', *out)
    refused(['more than one'], 'train', '--train', pairs, '--corpus', 'numbers', *out)
    refused(['--train-source and --train-target'], 'train', '--train-source', pairs, *out)
    refused(['--layers', 'whole number', '"two"', 'for example 2'], 'train', '--train', pairs, '--layers', 'two', *out)
    refused(['--dropout', 'from 0 to 0.999'], 'train', '--train', pairs, '--dropout', '1', *out)
    refused(['--minutes', '--steps'], 'train', '--train', pairs, '--steps', '1', '--minutes', '1', *out)
    refused(['numbers', 'letters'], 'train', '--corpus', 'letters', *out)
    refused(['--precision: expected f32, f16 or bf16', 'got f64'], 'train', '--train', pairs, '--precision', 'f64', *out)
    refused(['--out: expected a folder'], 'train', '--train', pairs, '--out', '')
    refused(['--max-words 1: none of the 80 training pairs'], 'train', '--train', write(pairs + '.long', 'a b\tc d\n' * 80),
            '--max-words', '1', *out)
    refused(['--out: cannot make the folder', pairs], 'train', '--train', pairs, '--out', os.path.join(pairs, 'below'), status=1)
    refused(['--train: expected a value, got the option "--out"'], 'train', '--train', '--out', 'model')
    refused(['--train: expected one value (TSV), got none'], 'train', *out, '--train')
    refused(['--bogus: no such option'], 'train', '--bogus')
    refused(['--vocab: expected one value (N), got 2: 60, 5'], 'train', '--train', pairs, '--vocab', '60', '--vocab', '5', *out)
    refused([':1: expected source, one tab, target; got an empty line'], 'train', '--train', write(pairs + '.blank', '\na\tb\n'), *out,
            status=1)
    refused(['CUDA'], 'train', '--train', pairs, '--device', 'cuda:99', '--steps', '1', *out, status=1)
    refused(['absent.tsv'], 'train', '--train', os.path.join(folder, 'absent.tsv'), *out, status=1)
    refused(['--seed', 'whole number'], 'demo', '--seed', 'x')


def main():
    with tempfile.TemporaryDirectory() as folder:
        lines = good('corpus', '--range', '0:100').splitlines(keepends=True)
        pairs = write(os.path.join(folder, 'train.tsv'), ''.join(lines[:80]))
        valid = write(os.path.join(folder, 'valid.tsv'), ''.join(lines[80:85]))
        # Two of the seven test lines have more words than --max-words lets through.
        test = write(os.path.join(folder, 'test.tsv'), ''.join(lines[85:90]) + 'a b c d e f\tx\nx\ta b c d e f\n')
        common = ['--train', pairs, '--valid', valid, '--test', test, '--max-words', '5', '--layers', '1', '--hidden', '16',
                  '--vocab', '60', '--batch-tokens', '200', '--valid-every', '6']
        whole = end_to_end(folder, common)
        sixteen_bits(folder, common)
        nothing_to_test(folder, common)
        interrupted(folder, common, whole)
        under_signals(folder)
        wrong_arguments(folder, pairs)
        for line in good('info').splitlines():
            check(line == line.rstrip(), repr(line))


main()

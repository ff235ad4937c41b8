# everglow_cuda_bench without a card: what it offers, what it refuses and how, and that it says what is missing.
# Usage: program_test.py PROGRAM
import os
import subprocess
import sys

PROGRAM = sys.argv[1]


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


shown = run('--help')
check(shown.returncode == 0 and shown.stdout.startswith('usage: everglow_cuda_bench OUT.jsonl') and not shown.stderr, shown)
for option in ('--peers', '--graphs', '--tag', '--case', '--kernel', '--direction', '--device', '--seconds', '--json', '--list', 'story'):
    check(option in shown.stdout, option)

for words, least, holds in ((('-', 'linear', '--list'), 15, 'outputs=33708 dtype=f16 rows=preferred'),
                            (('-', 'recurrent', 'cell=gru', '--list'), 30, 'recurrent cell=gru steps=256 batch=64 inputs=1024'),
                            (('-', 'story', 'causal=1', '--dtype', 'bf16', '--list'), 18, 'head_dim=256 causal=1 dtype=bf16'),
                            (('-', 'all', '--tag', 'users', '--list'), 30, 'batch=65536')):
    listed = run(*words)
    check(listed.returncode == 0 and holds in listed.stdout and len(listed.stdout.splitlines()) >= least, words, listed)

for expected, words in (('expected the file for the records', ()),
                        ('expected one of linear, recurrent, attention', ('-', 'lstm')),
                        ('unknown option "--what"', ('-', '--what', '1')),
                        ('--seconds: expected a number from 0 to 3600, got "-1"', ('-', '--seconds', '-1')),
                        ('--device: expected cuda:N, got "cpu"', ('-', '--device', 'cpu')),
                        ('--dtype: expected f16 or bf16, got "f32"', ('-', 'story', '--dtype', 'f32')),
                        ('--tag: expected a value', ('-', '--tag')),
                        ('no case of softmax with the tag "card" holds "x=y"', ('-', 'softmax', 'x=y', '--list')),
                        ('no case of the story holds "head_dim=32"', ('-', 'story', 'head_dim=32', '--list')),
                        ('got "more" too', ('-', 'linear', 'batch', 'more'))):
    refused = run(*words)
    check(refused.returncode == 2 and expected in refused.stderr and len(refused.stderr.splitlines()) == 1, words, refused)

for words in (('-', 'softmax'), ('-', 'story'), ('-', 'recurrent', '--peers')):
    missing = run(*words)
    check(missing.returncode == 1 and '--device cuda:0: CUDA' in missing.stderr and not missing.stdout, words, missing)
print('everglow_cuda_bench: all well')

# The tool's translate as a user meets it, on a model of a few steps: one line out for each line in, at once for a person, and what it
# says to wrong arguments and damaged input.
# Usage: translate_test.py TOOL
import os
import select
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]


def run(*arguments, stdin=b''):
    return subprocess.run([TOOL, *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200)


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


def translated(model, text, *options):
    result = run('translate', '--model', model, *options, stdin=text)
    check(result.returncode == 0 and not result.stderr, text, result.returncode, result.stderr)
    return result.stdout


def refused(status, part, *arguments, stdin=b''):
    result = run(*arguments, stdin=stdin)
    text = result.stderr.decode(errors='replace')
    check(result.returncode == status, arguments, result.returncode, text)
    check(part in text and len(text.splitlines()) <= 4, 'expected', repr(part), 'in', text)
    return result.stdout


def lines_match(model):
    check(translated(model, b'') == b'', 'nothing in, nothing out')
    text = b'one hundred\n\ntwo\r\n\n   \nninety thousand and eleven'
    out = translated(model, text)
    lines = out.split(b'\n')
    check(out.endswith(b'\n') and len(lines) == 7, 'six lines in, six out', out)
    check(lines[1] == b'' and lines[3] == b'' and lines[4] == b'', 'empty lines stay empty', out)
    check(translated(model, text.replace(b'\r', b'') + b'\n') == out, 'line ends do not matter')
    check(translated(model, text, '--batch-tokens', '1', '--threads', '1') == out, 'batches do not matter')
    many = b''.join(b'%d and %d\n' % (n, n * n) for n in range(2500))  # more than a chunk
    greedy = translated(model, many, '--beam', '1', '--max-length', '3')
    check(greedy.count(b'\n') == 2500, 'a line for each of many')
    last = many.splitlines(True)[-1]
    check(greedy.splitlines()[-1] == translated(model, last, '--beam', '1', '--max-length', '3').rstrip(b'\n'), 'lines stay in order')


def answers_at_once(model):
    tool = subprocess.Popen([TOOL, 'translate', '--model', model], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for line in (b'twelve\n', b'\n'):
        tool.stdin.write(line)
        tool.stdin.flush()
        ready, _, _ = select.select([tool.stdout], [], [], 60)
        check(ready and os.read(tool.stdout.fileno(), 1000).count(b'\n') == 1, 'an answer while the input is still open')
    tool.stdin.close()
    check(tool.wait(60) == 0, 'the end of the input ends the tool')


def wrong(model):
    out = refused(1, 'standard input:3: expected UTF-8, got byte 0xFF at byte 5 of the line', 'translate', '--model', model,
                  stdin=b'one\n\ntwo \xff\nthree\n')
    check(out.count(b'\n') == 2, 'lines before a damaged one are answered', out)
    refused(2, '--beam', 'translate', '--model', model, '--beam', '0')
    refused(2, '--length-penalty', 'translate', '--model', model, '--length-penalty', 'x')
    refused(2, '--threads', 'translate', '--model', model, '--threads', '0')
    refused(2, '--model', 'translate')
    refused(1, '--model: expected the --out of everglow train', 'translate', '--model', os.path.join(model, 'absent'))


with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, 'model')
    result = run('train', '--corpus', 'numbers', '--steps', '3', '--hidden', '16', '--out', model)
    check(result.returncode == 0, result.stdout, result.stderr)
    lines_match(model)
    answers_at_once(model)
    wrong(model)

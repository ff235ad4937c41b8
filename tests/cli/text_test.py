# The tool's corpus and score as a user meets them: what they write, and what they say to wrong arguments and damaged files.
# Usage: text_test.py TOOL
import os
import random
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]


def run(*arguments, stdin=b'', stdout=subprocess.PIPE):
    return subprocess.run([TOOL, *arguments], input=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=120)


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


def written(*arguments):
    result = run(*arguments)
    check(result.returncode == 0 and not result.stderr, arguments, result.returncode, result.stderr)
    return result.stdout.decode()


def refused(status, *parts_and_arguments):
    """The arguments stand behind the parts of the message, which are one tuple."""
    parts, *arguments = parts_and_arguments
    result = run(*arguments)
    text = result.stderr.decode(errors='replace')
    check(result.returncode == status and not result.stdout, arguments, result.returncode, text)
    check(text.startswith('everglow') and text.endswith('\n') and len(text.splitlines()) <= 4, arguments, text)
    for part in parts:
        check(part in text, arguments, 'expected', repr(part), 'in', text)


def corpus():
    whole = written('corpus')
    lines = whole.splitlines()
    check(len(lines) == 1000000 and len(set(lines)) == 1000000, 'one million different lines')
    check(lines[123] == 'one hundred and twenty-three\tcent vingt-trois', lines[123])
    check(lines[280] == 'two hundred and eighty\tdeux cent quatre-vingts', lines[280])
    check(lines[200000] == 'two hundred thousand\tdeux cent mille', lines[200000])
    check(written('corpus', '--range', '500:700').splitlines() == lines[500:700], 'a range')
    check(written('corpus', '--range', '7:7') == '', 'an empty range')
    parts = {part: written('corpus', '--split', part).splitlines() for part in ('train', 'valid', 'test')}
    check(sorted(sum(parts.values(), [])) == sorted(lines), 'the parts make up the whole, each line once')
    order = {line: n for n, line in enumerate(lines)}
    for part, part_lines in parts.items():
        numbers = [order[line] for line in part_lines]
        check(numbers == sorted(numbers), part, 'in order')
        inside = [line for line in part_lines if order[line] < 5000]
        check(written('corpus', '--range', '0:5000', '--split', part).splitlines() == inside, part, 'within a range')
        check(part == 'train' or 0.009 < len(part_lines) / 1e6 < 0.011, part, len(part_lines))


def score(folder):
    def file(name, content):
        path = os.path.join(folder, name)
        with open(path, 'wb') as out:
            out.write(content)
        return path

    # The values are sacreBLEU's (near, in tests/gnmt/bleu_oracle.inc).
    hypotheses = file('h', b'The cat sat on a mat.\nA dog was barking, loudly!\nIt rains in Paris today.\n')
    references = file('r', b'The cat sat on the mat.\r\nA dog barked, very loudly!\r\nIt is raining in Paris today.')
    lines = written('score', hypotheses, references).splitlines()
    check(lines[0] == 'BLEU = 36.64 80.0/52.9/28.6/18.2 (BP = 0.951 ratio = 0.952 hyp_len = 20 ref_len = 21)', lines[0])
    check(lines[-1].startswith('nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:everglow-'), lines[-1])
    check('|tok:intl|' in written('score', hypotheses, references, '--tokenize', 'intl').splitlines()[-1], 'intl')
    check(written('score', references, references).startswith('BLEU = 100.00 100.0/100.0/100.0/100.0 (BP = 1.000 '), 'itself')
    empty = file('empty', b'')
    check(written('score', empty, empty).startswith('BLEU = 0.00 0.0/0.0/0.0/0.0 (BP = 1.000 ratio = 0.000 hyp_len = 0'), 'nothing')
    shorter, binary = file('s', b'The cat\n'), file('b', b'a\nb\xff\nc\n')
    refused(1, ('equally many lines', 'got 1 in "', 'and 3 in'), 'score', shorter, references)
    refused(1, ('b:2: expected UTF-8, got byte 0xFF at byte 2 of the line',), 'score', binary, references)
    refused(1, ('No such file or directory', 'none'), 'score', os.path.join(folder, 'none'), references)
    refused(1, ('Is a directory',), 'score', folder, references)


def wrong_arguments():
    refused(2, ('corpus', 'score', 'got none', '--help'))
    refused(2, ('corpus', 'score', 'got "scores"'), 'scores')
    refused(2, ('got "--bogus"',), '--bogus')
    refused(2, ('--bogus: no such option', '--split', '--range', 'example: everglow corpus'), 'corpus', '--bogus')
    refused(2, ('got "test"', 'example:'), 'corpus', 'test')
    for split in ('all', '', 'Test', 'tests'):
        refused(2, ('--split: expected train or valid or test', f'got "{split}"', 'example:'), 'corpus', '--split', split)
    allowed = '--range: expected A:B with 0 <= A <= B <= 1000000'
    for wrong in ('5', ':', '1:', ':1', '1:2:3', '2:1', '-1:5', '0:1000001', 'a:b', '0x1:5', '1.5:2', ' 1:2', '1:2 ', '+1:2',
                  '9' * 40 + ':5'):
        refused(2, (allowed, f'got "{wrong}"', 'for example 0:1000'), 'corpus', '--range', wrong)
    refused(2, ('--range: expected one value (A:B), got none',), 'corpus', '--range')
    refused(2, ('--split',), 'corpus', '--split', 'test', '--split', 'valid')
    refused(2, ('hyp is required',), 'score')
    refused(2, ('ref is required',), 'score', 'a')
    refused(2, ('got "c"',), 'score', 'a', 'b', 'c')
    refused(2, ('--tokenize: expected 13a or intl, got "zh"', 'example:'), 'score', 'a', 'b', '--tokenize', 'zh')


def noise():
    """Whatever stands on the command line, the answer is a status of 0, 1 or 2 and at most a few lines."""
    rng = random.Random(int(os.environ.get('EVERGLOW_TEST_SEED', '1')))
    words = ['corpus', 'score', '--split', '--range', '--tokenize', 'test', '0:3', '13a', '--', '-', '--range=1:2', '--split=',
             '-x', '--help', '', ' ', '\u00e9', '%s%n', '--range=-1:', '/dev/null', 'a' * 5000, '-h', '--version', '=', '--=', '[',
             '@file', '"', "'"]
    for _ in range(150):
        arguments = [rng.choice(words) for _ in range(rng.randrange(5))]
        if arguments[:1] == ['corpus']:
            arguments += ['--range', '0:9']  # keeps the output small where all else is right
        result = run(*arguments)
        text = result.stderr.decode(errors='replace')
        check(result.returncode in (0, 1, 2), arguments, result.returncode, text)
        check((result.returncode == 0) == (text == ''), arguments, result.returncode, text)
        check('terminate' not in text and len(text.splitlines()) <= 4, arguments, text)


def pages():
    for page in ((), ('corpus',), ('score',)):
        text = written(*page, '--help')
        check(all(len(line) <= 100 for line in text.splitlines()), page, text)
        check('example: everglow' in text and 'usage: everglow' in text, page, text)
    check(written('--version').startswith('everglow '), 'version')


def output_that_cannot_be_written():
    reader, writer = os.pipe()
    process = subprocess.Popen([TOOL, 'corpus'], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    check(os.read(reader, 10) == b'zero\tz\xc3\xa9ro'[:10], 'the first bytes')
    os.close(reader)
    check(process.communicate(timeout=60)[1] == b'', 'a closed pipe is no news')
    if os.path.exists('/dev/full'):
        with open('/dev/full', 'wb') as full:
            for arguments in (('corpus',), ('corpus', '--range', '0:1'), ('score', '/dev/null', '/dev/null'), ('--help',)):
                result = run(*arguments, stdout=full)
                check(result.returncode == 1 and b'No space left' in result.stderr, arguments, result.returncode, result.stderr)


corpus()
with tempfile.TemporaryDirectory() as temporary:
    score(temporary)
wrong_arguments()
noise()
pages()
output_that_cannot_be_written()
print('corpus and score: all well')

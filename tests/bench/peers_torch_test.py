# bench/peers_torch.py says what is missing: PyTorch, a card, or the program. Usage: peers_torch_test.py ROOT
import importlib.util
import os
import subprocess
import sys

SCRIPT = os.path.join(sys.argv[1], 'bench', 'peers_torch.py')


def refused(*arguments):
    result = subprocess.run([sys.executable, '-B', SCRIPT, *arguments], capture_output=True, text=True, timeout=120,
                            env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})
    if result.returncode == 0 or 'Traceback' in result.stderr or result.stdout:
        print('failed:', arguments, result)
        sys.exit(1)
    return result.stderr


if importlib.util.find_spec('torch') is None:
    EXPECTED = {(): 'peers_torch.py: needs a Python with PyTorch'}
else:
    EXPECTED = {('--device', 'cuda:0'): '--device cuda:0: ', ('--device', 'tpu'): 'expected cpu or cuda:N, got "tpu"',
                ('--story',): '--story: expected --device cuda:N, got cpu', ('--peer', 'flex'): '--peer: expected --device cuda:N, got cpu', ('--program', '/none'): 'no program at /none',
                ('--rounds', '-1', '--program', sys.executable): 'expected at least 1'}
for given, text in EXPECTED.items():
    said = refused(*given)
    if text not in said:
        print('failed:', given, said)
        sys.exit(1)
print('peers_torch: all well')

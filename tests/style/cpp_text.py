# Reads C++ well enough for the rules: text without comments and strings, and the functions with their lines and parameters.
import re

BLANK = re.compile(
    r'R"(?P<tag>[^ ()\\\t\n]*)\(.*?\)(?P=tag)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'', re.S)
DIRECTIVE = re.compile(r'^[ \t]*#(?:[^\n\\]|\\\n|\\.)*', re.M)
TYPE_OR_SPACE = re.compile(
    r'^\s*(?:template\s*<.*>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern\s+")(?!\w)', re.S)


def blanked(text):
    """The text with comments, strings and directives as spaces; every line keeps its number."""
    spaces = lambda match: re.sub(r'[^\n]', ' ', match.group())
    return DIRECTIVE.sub(spaces, BLANK.sub(spaces, text))


def top_level_parameters(header):
    """How many parameters the last bracketed list of a function's header has, before a list of member initialisers."""
    head = re.split(r'\)\s*(?:noexcept)?\s*:(?!:)', header, maxsplit=1)[0]
    start = head.find('(')
    if re.search(r'operator\s*\(\s*\)', head):
        start = head.find('(', head.find(')'))
    depth, count, seen = 0, 0, False
    for char in head[start + 1:]:
        if char == ')' and depth == 0:
            break
        if char in '([{<':
            depth += 1
        elif char in ')]}>':
            depth -= 1
        elif char == ',' and depth == 0:
            count += 1
        seen = seen or not char.isspace()
    return count + 1 if seen else 0


def opens_function(header):
    head = header.strip()
    if TYPE_OR_SPACE.match(head) or '(' not in head:
        return False
    before = head[:head.find('(')]
    if '=' in before.replace('operator=', '').replace('==', '') or '[' in before.replace('[[', '').replace('operator[', ''):
        return False  # an initialiser, or a lambda in one
    return bool(re.search(r'\)\s*(?:const|noexcept|override|final|mutable|&|&&|->[^;]*|requires[^;]*|:[^;]*|\s)*$', head, re.S))


def is_member_initialiser(header):
    """True where the brace after this text opens the value of a member in a constructor's list."""
    return bool(re.search(r'\)\s*(?:noexcept)?\s*:(?!:)[^;]*[\w>]\s*$', header, re.S))


def functions(text):
    """(name, first line, last line, parameters) of each function at namespace or class scope."""
    found, scopes, header, parens, line, header_line = [], [], '', 0, 1, 1
    for char in blanked(text):
        if char == '\n':
            line += 1
        in_body = any(kind != 'outer' for kind, *_ in scopes)
        if char == '{':
            if in_body or parens > 0 or is_member_initialiser(header):
                scopes.append(('inner', None, 0, 0))
            elif opens_function(header):
                name = re.search(r'(operator\s*(?:\(\s*\)|[^\s(]+)|[\w~:]+)\s*\(', header)
                scopes.append(('function', name.group(1) if name else '?', header_line, top_level_parameters(header)))
            elif TYPE_OR_SPACE.match(header.strip()):
                scopes.append(('outer', None, 0, 0))
            else:
                scopes.append(('value', None, 0, 0))
            if scopes[-1][0] != 'inner' and not in_body:
                header = ''
            continue
        if char == '}' and scopes:
            kind, name, first, parameters = scopes.pop()
            if kind == 'function':
                found.append((name, first, line, parameters))
            if kind in ('function', 'outer', 'value'):
                header = ''
            elif all(outer == 'outer' for outer, *_ in scopes):
                header += '{}'
            continue
        if in_body:
            continue
        parens += (char == '(') - (char == ')')
        if char == ';' and parens == 0:
            header = ''
        else:
            if not header.strip() and not char.isspace():
                header_line = line
            header += char
            header = re.sub(r'\b(?:public|private|protected)\s*:$', '', header)
    return found

# docs/plan.schema.json, and what of a value does not keep to it.
import json
import os
import re
import sys

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'docs')
with open(os.path.join(DOCS, 'plan.schema.json'), encoding='utf-8') as file:
    SCHEMA = json.load(file)


def check(condition, *what):
    if not condition:
        print('failed:', *what)
        sys.exit(1)


def faults(value, schema, path='$'):
    """What of `value` does not keep to `schema`: the part of JSON Schema that ours uses, and an error for any other."""
    known = {'$schema', 'title', 'description', '$defs', '$ref', 'oneOf', 'type', 'required', 'properties', 'additionalProperties',
             'items', 'enum', 'const', 'minimum', 'maximum', 'pattern', 'minItems', 'maxItems'}
    unknown = set(schema) - known
    check(not unknown, 'the schema uses', unknown)
    if '$ref' in schema:
        return faults(value, SCHEMA['$defs'][schema['$ref'].rsplit('/', 1)[1]], path)
    out = []
    if 'oneOf' in schema:
        alternatives = [faults(value, option, path) for option in schema['oneOf']]
        fitting = sum(not one for one in alternatives)
        if fitting != 1:
            out += [f'{path}: {fitting} alternatives fit'] + min(alternatives, key=len)
    if 'const' in schema and value != schema['const']:
        out.append(f'{path}: {value!r} is not {schema["const"]!r}')
    if 'enum' in schema and value not in schema['enum']:
        out.append(f'{path}: {value!r} is none of {schema["enum"]}')
    if 'type' in schema:
        names = schema['type'] if isinstance(schema['type'], list) else [schema['type']]
        kinds = {'object': dict, 'array': list, 'string': str, 'boolean': bool, 'integer': int, 'number': (int, float),
                 'null': type(None)}
        fits = any(isinstance(value, kinds[name]) and (name == 'boolean' or not isinstance(value, bool)) for name in names)
        if not fits:
            return out + [f'{path}: {value!r} is no {schema["type"]}']
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get('minimum', value) or value > schema.get('maximum', value) or value != value:
            out.append(f'{path}: {value} is out of range')
    if isinstance(value, str) and not re.search(schema.get('pattern', ''), value):
        out.append(f'{path}: {value!r} does not match')
    if isinstance(value, list):
        if not schema.get('minItems', 0) <= len(value) <= schema.get('maxItems', len(value)):
            out.append(f'{path}: {len(value)} items')
        for i, item in enumerate(value):
            out += faults(item, schema.get('items', {}), f'{path}[{i}]')
    if isinstance(value, dict):
        out += [f'{path}: no {name}' for name in schema.get('required', []) if name not in value]
        for name, item in value.items():
            inner = schema.get('properties', {}).get(name, schema.get('additionalProperties', {}))
            out += [f'{path}: {name} is not in the schema'] if inner is False else faults(item, inner, f'{path}.{name}')
    return out

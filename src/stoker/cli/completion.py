"""Completion of command lines by bash and zsh: `eval "$(stoker --completion bash)"`.

The script that is printed has all commands, actions, options and their choices in it: nothing is started when Tab is hit.
"""

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh")

_SCRIPT = """\
_stoker() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="" word names="" options=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$command $word" in
{steps}
        esac
    done
    case "$command" in
{words}
    esac
    case "$command $previous" in
{choices}
    esac
    [[ "$current" == -* ]] && names="$options"
    COMPREPLY=($(compgen -W "$names" -- "$current"))
}}
complete -o default -F _stoker stoker
"""
_FOR_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that a shell is to evaluate."""
    steps, words, choices = [], [], []
    for path, each in _parsers(parser, ""):
        below = [name for action in each._actions if _is_step(action) for name in action.choices or ()]
        options = [option for action in each._actions for option in action.option_strings]
        steps += [f'            "{path} {name}") command="{f"{path} {name}".strip()}";;' for name in below]
        words.append(f'        "{path}") names="{" ".join(below)}" options="{" ".join(options)}";;')
        for action in each._actions:
            if action.choices and action.option_strings:
                offered = " ".join(map(str, action.choices))
                choices += [f'        "{path} {option}") names="{offered}";;' for option in action.option_strings]
    script = _SCRIPT.format(steps="\n".join(steps), words="\n".join(words), choices="\n".join(choices))
    return (_FOR_ZSH if shell == "zsh" else "") + script


def _parsers(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and all below it, each with the words that lead there."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield from _parsers(each, f"{path} {name}".strip())


def _is_step(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)

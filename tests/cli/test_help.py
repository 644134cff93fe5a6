"""The command without a command, its help in groups, and completion by the shell."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stoker.cli
from stoker.cli.help import GROUPS

CLI = Path(stoker.cli.__file__).parent


def told(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "stoker", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bare_it_teaches() -> None:
    text = told()
    assert "stoker analyze train.py" in text
    assert "stoker run --plan plan.toml train.py" in text


def test_help_has_every_command_once_in_one_of_three_groups() -> None:
    lines = told("--help").partition("\noptions:")[0].splitlines()
    begins = [number for number, line in enumerate(lines) if line.split(":")[0] in GROUPS]
    assert [lines[number].split(":")[0] for number in begins] == ["see", "fix", "share"]
    named = [line.split()[0] for line in lines[begins[0] :] if line.startswith("  ")]
    commands = {path.stem for path in CLI.glob("*.py") if "\ndef add_options" in path.read_text()}
    assert sorted(named) == sorted(name for name in commands if not name.startswith("schedule_"))


def completed(script: Path, line: str) -> list[str]:
    """What bash offers at the end of a command line."""
    code = f"""
source {script}
COMP_WORDS=({line.rstrip()}{' ""' if line.endswith(" ") else ""})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_stoker
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(told("--completion", "bash"))
    assert completed(script, "stoker an") == ["analyze"]
    assert completed(script, "stoker cache c") == ["clear"]
    assert completed(script, "stoker schedule sub") == ["submit"]
    assert completed(script, "stoker run --se") == ["--seed"]
    assert completed(script, "stoker run --ranks ") == ["shared"]
    assert completed(script, "stoker run ") == []  # files, by bash itself
    assert told("--completion", "zsh").endswith(script.read_text())


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        ("top --every 0", "stoker top", "unrecognized arguments: --every 0"),
        ("cache ls --sise 3", "stoker cache ls", "unrecognized arguments: --sise 3"),
        ("cache", "stoker cache", "required: ACTION (one of ls, "),
        ("plan profile.json --gpus two", "stoker plan", "argument --gpus: a whole number, not 'two'"),
        ("analyze --fail-above ten train.py", "stoker analyze", "argument --fail-above: a number, not 'ten'"),
        ("--nothing", "stoker", "unrecognized arguments: --nothing"),
    ],
)
def test_wrong_use_has_the_usage_of_its_command(
    words: str, usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        stoker.cli.main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: {usage} [")
    assert message in said

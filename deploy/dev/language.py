"""Measures the language of docstrings, comments and docs: forms that stand for a term of the field, and docstrings that start with a verb.

Invariant: only prose is measured; code in backticks or indented, quoted text, addresses and directives of tools never count.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]


@attrs.frozen
class Limit:
    """Limits of one package, folder or page; they only ever get stricter."""

    words: float
    """Occurrences of `WORDS` per 1,000 words."""
    verbs: float
    """Least share of public function docstrings that start with a verb, in percent."""
    can_not: int = 0
    """Occurrences of "can not"."""


LIMITS: Mapping[str, Limit] = {
    "vkubelet": Limit(words=0.15, verbs=95),
    "kubeocean": Limit(words=0.35, verbs=99),
    "fleet": Limit(words=0.15, verbs=99),
    "providers": Limit(words=0.15, verbs=99),
    "deploy": Limit(words=0.0, verbs=99),
    "docs": Limit(words=0.5, verbs=0),
    "README.md": Limit(words=0.5, verbs=0),
    "CONTRIBUTING.md": Limit(words=0.5, verbs=0),
}
"""What `--check` enforces: below 0.5 per 1,000 words is the goal of all of them, and 95 % verbs that of code."""

WORDS: Mapping[str, str] = {
    "can not": r"can not",
    "tell, say, word": r"tells?|told|telling|says?|said|saying|words?",
    "hear, look": r"hears?|heard|hearing|look(?:s|ed|ing)?",
    "home, there": r"home|there",
    "anew, once more": r"anew|once more",
    "somebody, nobody, whoever": r"somebody|nobody|whoever",
    "mend, whole, well": r"mend(?:s|ed|ing)?|whole|well",
    "what is wanted, what is there": r"what is wanted|what is there",
    "life, end, begin, gone, lost": r"life|end(?:s|ed|ing)?|begins?|began|begun|beginning|gone|lost",
    "held, by hand, of its own": r"held|by hand|of (?:its|their) own",
    "take over": r"(?:takes?|taken|taking|took) over",
    "opinion, standing, outlook": r"opinions?|standings?|outlooks?|board|figures?|inherited",
    "poke, forget": r"pok(?:e|es|ed|ing)|forgets?|forgot|forgotten|forgetting",
}
"""Forms to avoid, by the row of the style guide that has them. A longer phrase counts once, as itself."""

TERMS = (
    r"there(?= (?:is|are|was|were|has|have|may|must|can|will|would|should) )",
    r"(?:as|so) well|well[- ](?:known|formed)",
    r"looks? up|looked up|looking up",
    r"home director(?:y|ies)",
    r"per 1,000 words",
    r"end[- ]to[- ]end|(?:front|back) ends?|end of (?:the )?(?:file|input|stream)",
    r"inherited (?:file )?descriptors?",
)
"""Fixed terms of the field and of English in which such a form does not replace another."""

_VERBS = """
    abandon abort accept acquire act adapt add admit adopt advance aggregate allocate allow annotate answer append apply approve ask
    assemble assert assign assume attach authenticate authorize await back balance bind block bootstrap bound bring buffer build bump
    bundle cache calculate call cancel cap capture carry change charge check choose claim classify clean clear close collect combine
    compare compile complete compose compress compute confirm connect consume contain continue convert copy cordon correct count cover
    create cut decide declare decode decompress decrease decrement defer define delay delegate delete deliver deny deregister derive
    describe deserialize detach detect determine diff disable discard disconnect discover dispatch display distribute do download drain
    drop dump duplicate echo edit emit enable encode enforce enqueue ensure enter enumerate escape establish estimate evaluate evict
    exchange exclude execute exempt exit expand expect expire explain export expose extend extract fail feed fetch fill filter find
    finish fit fix flag flush follow force forge format forward free freeze generate get give go grant group grow guard guess hand
    handle hash hide hold identify ignore implement import include increase increment indent index infer inform inherit initialize
    inject insert inspect install intercept interpret interrupt invalidate invoke isolate issue iterate join judge keep kill label
    launch lead learn lease leave let limit link list listen load locate lock log look lower make map mark mask match measure merge
    migrate mirror modify monitor mount move name narrow negotiate normalize note notify number observe obtain offer omit open order
    override pace pack pad parse partition pass patch pause perform pick pin ping place plan poll populate post postpone predict prefer
    prefix prepare present preserve prevent print probe proceed process produce promise promote propagate protect prove provide
    provision prune publish pull purge push put query queue quote raise read reap rebuild recall receive recheck reclaim recognize
    recompute reconcile reconnect record recover redact redirect reduce refer refill refresh refuse register reject relay release reload
    rely remember remove rename render renew reopen repair repeat replace reply report represent request requeue require reschedule
    reserve reset resize resolve respect respond restart restore restrict resume retain retire retract retrieve retry return reuse
    reveal reverse revoke rewrite rotate round route run sample satisfy save scale scan schedule scrape seal search seed select send
    separate serialize serve set settle share shift ship show shrink shut shutdown sign signal simulate skip sleep sort spawn specify
    split spread stamp start state stay step stop store stream strip submit subscribe subtract succeed suggest sum supply support
    surrender suspend swap switch sync synchronize tag take tear terminate test throttle time tolerate touch track transfer transform
    translate traverse treat trigger trim truncate trust try turn type unbind undo unescape uninstall unlink unlock unmount unpack
    unregister unwrap update upgrade upload use validate verify view visit wait wake walk warn watch widen withdraw withhold work wrap
    write yield
"""
VERBS = frozenset(_VERBS.split())
"""Verbs that a docstring may start with: in the imperative, or in the third person, which follows from it by rule."""

_NOUNS_TOO = """
    answer back bound buffer bundle cache call cap change charge check claim copy count cover cut delay diff display drain dump echo
    edit estimate exit export feed fill filter fit flag format forward grant group guard guess hand handle hash hold import increase
    index issue label lead lease limit link list load lock log look map mark mask match measure name note number offer order pack patch
    pause pick pin ping place plan poll post prefix present print probe process promise pull push query queue quote record release
    report request reserve reset rest result return route run sample scale schedule search seed share shift ship show signal sleep sort
    split spread stamp start state stay step stop store stream sum supply support swap switch tag test throttle time touch track
    transfer trigger turn type update upgrade use view visit wait walk watch work wrap yield
"""
NOUNS_TOO = frozenset(_NOUNS_TOO.split())
"""Of these the noun is as frequent as the verb: what follows decides."""
AFTER_A_NOUN = frozenset({"of", "that", "with"})
"""One of `NOUNS_TOO` before one of these is a noun."""
BEFORE_THAT = frozenset({"check", "mark", "note", "record", "report", "show", "signal"})
"""Of those the verbs that also take a clause with "that"."""

_IGNORED = re.compile(r"(?m:^ {4}.*$)|``.*?``|`[^`]*`|\"[^\"]*\"|“[^”]*”|https?://\S+", re.DOTALL)
_NO_PROSE = re.compile(r"^(```|~~~).*?^\1\s*$|<!--.*?-->|^>.*?$|^\|[-:| ]+\|$", re.DOTALL | re.MULTILINE)
"""Markdown that is no prose: fenced code and output, comments, quotations and the rulers of tables."""
_TARGET = re.compile(r"(?<=\])\([^)\s]*\)")
_BLOCK = re.compile(r"^(?:[ ]{0,3}(?:[-*+]|\d+\.)[ ]|\||#)", re.MULTILINE)
"""Start of a list item, a row of a table or a heading: a phrase does not go over it."""
_DIRECTIVE = re.compile(r"#\s*(?:!|noqa|type:|pragma|ruff:|mypy:|fmt:)")
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_TERMS = re.compile(rf"\b(?:{'|'.join(TERMS)})\b", re.IGNORECASE)
_FOUND = re.compile(
    r"\b(?:"
    + "|".join(f"(?P<r{n}>{form})" for n, form in sorted(enumerate(WORDS.values()), key=lambda row: -len(row[1].split())))
    + r")\b",
    re.IGNORECASE,
)
_CAN_NOT = next(iter(WORDS))

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@attrs.frozen
class Text:
    """One docstring, or comments in lines that follow each other."""

    line: int
    prose: str
    function: bool = False
    """Whether it documents a public function; a property is documented as the attribute it is for its readers."""


@attrs.define
class Measure:
    """Counts of one package or folder."""

    words: int = 0
    docstrings: int = 0
    verbs: int = 0
    found: Counter[str] = attrs.Factory(Counter)

    @property
    def rate(self) -> float:
        """Forms to avoid per 1,000 words."""
        return 1000 * sum(self.found.values()) / self.words if self.words else 0.0

    @property
    def share(self) -> float:
        """Percentage of public function docstrings that start with a verb."""
        return 100 * self.verbs / self.docstrings if self.docstrings else 100.0

    def add(self, text: Text) -> None:
        """Counts one text."""
        self.words += len(_WORD.findall(prose_of(text.prose)))
        self.found.update(row for row, _ in occurrences(text.prose))
        self.docstrings += text.function
        self.verbs += text.function and starts_with_verb(text.prose)


def texts(source: str) -> Iterator[Text]:
    """Yields the docstrings of a module, those of attributes included, and its comments."""
    yield from docstrings(ast.parse(source))
    yield from comments(source)


def paragraphs(markdown: str) -> Iterator[Text]:
    """Yields paragraphs, headings, list items and rows of tables; code, quotations and addresses are left out."""
    kept = _NO_PROSE.sub(lambda match: "\n" * match.group().count("\n"), markdown)
    start, lines = 0, list[str]()
    for number, line in enumerate([*kept.splitlines(), ""], 1):
        if lines and (not line.strip() or _BLOCK.match(line) or lines[-1].startswith(("#", "|"))):
            yield Text(start, _TARGET.sub("", " ".join(lines)))
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(line.strip())


def texts_of(path: Path) -> Iterator[Text]:
    """Yields the texts of a module or of a page in Markdown."""
    source = path.read_text()
    return paragraphs(source) if path.suffix == ".md" else texts(source)


def docstrings(tree: ast.Module) -> Iterator[Text]:
    """Yields every string that is an expression statement."""
    public = {id(node.body[0]) for node in ast.walk(tree) if isinstance(node, FunctionNode) and is_public(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text(node.lineno, inspect.cleandoc(node.value.value), function=id(node) in public)


def is_public(function: FunctionNode) -> bool:
    """Checks that the name has no leading underscore and that the function is no property."""
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in function.decorator_list}
    return not function.name.startswith("_") and not marks & {"property", "cached_property", "setter"}


def comments(source: str) -> Iterator[Text]:
    """Yields comments; lines of comments that follow each other are one text, as a phrase may go over the edge of a line."""
    start, last, lines = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        if lines and token.start[0] != last + 1:
            yield Text(start, " ".join(lines))
            lines = []
        start = start if lines else token.start[0]
        last = token.start[0]
        lines.append(token.string.lstrip("#: "))
    if lines:
        yield Text(start, " ".join(lines))


def prose_of(text: str) -> str:
    """Returns the text in one line, without code, quoted text and addresses."""
    return " ".join(_IGNORED.sub(" ", text).split())


def occurrences(text: str) -> Iterator[tuple[str, str]]:
    """Yields the row of each form to avoid, and the form."""
    rows = list(WORDS)
    for match in _FOUND.finditer(_TERMS.sub(" ", prose_of(text))):
        row = next(name for name, form in match.groupdict().items() if form is not None)
        yield rows[int(row.removeprefix("r"))], match.group()


def starts_with_verb(text: str) -> bool:
    """Checks the first token against `VERBS`, in the imperative or the third person."""
    first, second, *_ = [*text.replace("`", "").split(), "", ""]
    verb = first.rstrip(",:;").lower()
    base = next((form for form in bases(verb) if form in VERBS), "")
    after = second.lower()
    noun = base in NOUNS_TOO and after in AFTER_A_NOUN and not (base in BEFORE_THAT and after == "that")
    return bool(base) and not noun


def bases(verb: str) -> Iterator[str]:
    """Yields the forms of which this may be the third person, itself first."""
    yield verb
    if verb.endswith("s"):
        yield verb[:-1]
    if verb.endswith("es"):
        yield verb[:-2]
    if verb.endswith("ies"):
        yield f"{verb[:-3]}y"


def sources(folder: str) -> Iterator[Path]:
    """Yields the modules and pages below a folder, or the one file that is named."""
    path = ROOT / folder
    return iter([path] if path.is_file() else sorted((*path.rglob("*.py"), *path.rglob("*.md"))))


def measure(folder: str) -> Measure:
    """Returns the counts of all modules and pages below a folder."""
    counts = Measure()
    for path in sources(folder):
        for text in texts_of(path):
            counts.add(text)
    return counts


def complaints(name: str, counts: Measure, limit: Limit) -> Iterator[str]:
    """Yields one sentence for each limit that a package exceeds."""
    if counts.rate > limit.words:
        yield f"{name}: {counts.rate:.2f} words to avoid per 1,000 words, at most {limit.words}"
    if counts.found[_CAN_NOT] > limit.can_not:
        yield f'{name}: "can not" {counts.found[_CAN_NOT]} times, at most {limit.can_not}'
    if counts.share < limit.verbs:
        yield f"{name}: {counts.share:.1f} % of public function docstrings start with a verb, at least {limit.verbs} %"


def findings(folder: str) -> Iterator[str]:
    """Yields each form to avoid and each public function docstring without a verb, with file and line."""
    for path in sources(folder):
        for text in texts_of(path):
            where = f"{path.relative_to(ROOT)}:{text.line}"
            yield from (f"{where}: {form!r}" for _, form in occurrences(text.prose))
            if text.function and not starts_with_verb(text.prose):
                yield f"{where}: starts without a verb: {prose_of(text.prose)[:60]!r}"


def table(measures: Mapping[str, Measure]) -> list[str]:
    """Renders the counts, one column for each package or folder."""
    width = max(len(name) for name in (*measures, "kubeocean")) + 2
    head = f"{'per 1,000 words':34}" + "".join(f"{name:>{width}}" for name in measures)
    lines = [head]
    for row in WORDS:
        rates = (1000 * counts.found[row] / counts.words if counts.words else 0 for counts in measures.values())
        lines.append(f"{row:34}" + "".join(f"{rate:>{width}.2f}" for rate in rates))
    lines.append(f"{'all of them':34}" + "".join(f"{counts.rate:>{width}.2f}" for counts in measures.values()))
    lines.append(f"{'words':34}" + "".join(f"{counts.words:>{width}}" for counts in measures.values()))
    lines.append(f"{'public function docstrings':34}" + "".join(f"{counts.docstrings:>{width}}" for counts in measures.values()))
    lines.append(f"{'that start with a verb, %':34}" + "".join(f"{counts.share:>{width}.1f}" for counts in measures.values()))
    return lines


def main(arguments: Sequence[str]) -> int:
    """Prints the table, or checks the limits; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", default=list(LIMITS), help="folders, modules or pages; everything with limits by default")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a package exceeds its limits")
    parser.add_argument("--list", action="store_true", help="print each finding with file and line")
    options = parser.parse_args(arguments)
    if options.check:
        found = [text for name, limit in LIMITS.items() for text in complaints(name, measure(name), limit)]
        print(*found or ["language: within the limits"], sep="\n")
        return 1 if found else 0
    if options.list:
        print(*(line for folder in options.folders for line in findings(folder)), sep="\n")
        return 0
    print(*table({folder: measure(folder) for folder in options.folders}), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs the cells of one Python context; `talk.py` stands before it in the same program."""

import linecache
import _ast

ONLY_AST = 0x400
TOP_LEVEL_AWAIT = getattr(_ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
IS_COROUTINE = 0x80
# Bytes of one answer's forms; a larger form is left out and named.
MAX_FORM_BYTES = 8 * 1024 * 1024
# Cells whose source is kept for tracebacks.
MAX_SOURCES = 500
FORMS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/pdf", "_repr_pdf_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
)


class StdinNotImplementedError(RuntimeError):
    """Nobody sits at the keyboard of a cell."""


def encoded(form, data):
    if isinstance(data, tuple) and data:
        data = data[0]
    if isinstance(data, (bytes, bytearray)):
        import base64

        data = base64.b64encode(data).decode("ascii")
    if form == "text/plain" and not isinstance(data, str):
        data = str(data)
    return data


def forms_of(value):
    """What a value looks like: its text, and the forms that its `_repr_*_` methods give."""
    found = {}
    if not isinstance(value, type):
        bundle = getattr(value, "_repr_mimebundle_", None)
        if callable(bundle):
            try:
                given = bundle(include=None, exclude=None)
                found.update((given[0] if isinstance(given, tuple) else given) or {})
            except Exception as error:
                complain(value, "_repr_mimebundle_", error)
        for form, name in FORMS:
            method = None if form in found else getattr(value, name, None)
            if not callable(method):
                continue
            try:
                data = method()
            except NotImplementedError:
                continue
            except Exception as error:
                complain(value, name, error)
                continue
            if data is not None:
                found[form] = data
        if "image/png" not in found and is_figure(value):
            found["image/png"] = png_of(value)
    if "text/plain" not in found:
        found["text/plain"] = repr(value)
    return bounded({form: encoded(form, data) for form, data in found.items() if data is not None})


def bounded(found):
    out = {}
    for form, data in found.items():
        size = len(data) if isinstance(data, str) else len(json.dumps(data, default=str))
        if size > MAX_FORM_BYTES:
            note = "%s of %d characters is left out: at most %d are sent; write it to a file" % (
                form, size, MAX_FORM_BYTES)
            sys.stderr.write(note + "\n")
            if form != "text/plain":
                continue
            data = data[:1000] + "... (%s)" % note
        out["text" if form == "text/plain" else form] = data
    return out


def complain(value, name, error):
    sys.stderr.write("%s.%s failed: %s: %s\n" % (type(value).__name__, name, type(error).__name__, error))


def display(*values, **options):
    """Shows values in the middle of a cell."""
    for value in values:
        if options.get("raw") and isinstance(value, dict):
            shown = bounded({form: encoded(form, data) for form, data in value.items()})
        else:
            shown = forms_of(value)
        TALK.send("display", data=shown)


def is_figure(value):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def png_of(figure):
    import io

    out = io.BytesIO()
    figure.savefig(out, format="png", bbox_inches="tight")
    return out.getvalue()


def show_figures(*_args, **_options):
    """Sends all figures of pyplot and closes them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if figure.get_axes() or getattr(figure, "texts", None) or getattr(figure, "images", None):
            display(figure)
    pyplot.close("all")


def patch_pyplot(module):
    module.show = show_figures


def patch_display(module):
    module.display = display


PATCHES = {
    "matplotlib.pyplot": patch_pyplot,
    "IPython.display": patch_display,
    "IPython.core.display_functions": patch_display,
}


class Patcher:
    """Puts our ways of showing into modules that show, when a cell imports them."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        patch = PATCHES.get(name)
        if patch is None:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not cls and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        run = getattr(getattr(spec, "loader", None), "exec_module", None)
        if run is None:
            return spec

        def exec_module(module):
            run(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


def refuse_input(prompt="", *_rest):
    raise StdinNotImplementedError("input() is refused: nobody can answer in a code context; pass data in as a variable or a file")


class Context:
    """What lasts from cell to cell."""

    def __init__(self, talk):
        self.talk = talk
        self.count = 0
        self.flags = 0
        self.loop = None
        self.module = type(sys)("__main__")
        sys.modules["__main__"] = self.module
        self.names = self.module.__dict__
        self.names.update(__builtins__=builtins, display=display, _=None)

    def run(self, code):
        self.count += 1
        name = "<cell %d>" % self.count
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        linecache.cache.pop("<cell %d>" % (self.count - MAX_SOURCES), None)
        _signal.signal(_signal.SIGINT, self.talk.interrupt)
        try:
            try:
                self.talk.running = True
                self.evaluate(code, name)
                show_figures()
            finally:
                self.talk.running = False
        except BaseException as error:
            self.report(error)
        self.talk.interrupted = False
        if os.getpid() != self.talk.pid:
            self.talk.flush()
            os._exit(0)  # a cell forked, and this is the child
        self.talk.send("end")

    def evaluate(self, code, name):
        flags = self.flags | TOP_LEVEL_AWAIT
        tree = compile(code, name, "exec", flags | ONLY_AST, True)
        last = None
        if tree.body and isinstance(tree.body[-1], _ast.Expr):
            # As in a notebook, a final semicolon keeps the value back.
            last = _ast.Expression(tree.body.pop().value)
        if tree.body:
            body = compile(tree, name, "exec", flags, True)
            self.flags |= body.co_flags & FUTURE_FLAGS
            self.call(body)
        if last is not None:
            value = self.call(compile(last, name, "eval", self.flags | TOP_LEVEL_AWAIT, True))
            if value is not None and not code.rstrip().endswith(";"):
                self.names["_"] = value
                self.talk.send("result", count=self.count, data=forms_of(value))

    def call(self, code):
        value = eval(code, self.names)
        return self.wait(value) if code.co_flags & IS_COROUTINE else value

    def wait(self, coroutine):
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                try:
                    self.loop.run_until_complete(task)
                except BaseException:
                    pass
            raise

    def report(self, error):
        import traceback

        name = type(error).__name__
        try:
            value = str(error)
        except Exception:
            value = "<its text cannot be made>"
        frames = error.__traceback__
        while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
            frames = frames.tb_next
        try:
            lines = traceback.format_exception(type(error), error.with_traceback(frames), frames)
        except Exception:
            lines = ["%s: %s\n" % (name, value)]
        lines = "".join(lines).splitlines()
        del frames
        self.talk.fail(name, value, lines)


def prepare():
    os.environ.setdefault("MPLBACKEND", "agg")
    builtins.input = refuse_input
    sys.argv = [""]
    sys.meta_path.insert(0, Patcher)


def future_flags():
    import __future__

    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag
    return flags & ~IS_COROUTINE


if not TOP_LEVEL_AWAIT and sys.version_info >= (3, 8):
    TOP_LEVEL_AWAIT = 0x2000
FUTURE_FLAGS = future_flags()
prepare()
CONTEXT = Context(TALK)
for _cell in cells(TALK):
    CONTEXT.run(_cell)

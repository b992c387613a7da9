"""Runs the statements of one SQL context; `talk.py` stands before it in the same program.

Where a MySQL server listens, statements go to that, as published: user root without a password, database `sandbox`.
Elsewhere they go to an SQLite database in memory, which lasts as long as the context.
"""

import re
import socket

# Characters of one result.
MAX_RESULT = 8 * 1024 * 1024
# Seconds in which a MySQL server must accept a connection and greet.
CONNECT_SECONDS = 5
# Rows that are read between two looks at what was read so far.
ROWS = 1000
# Steps of SQLite between two looks for an interrupt.
STEPS = 10_000
PIECE = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|--[^\n]*|\#[^\n]*|/\*.*?\*/|;|[^'"`;/#-]+|.""", re.S)


class Failure(Exception):
    """A statement that failed, under the published name of its step."""

    def __init__(self, name, words):
        super().__init__(words)
        self.name = name


def is_query(statement):
    return statement.lstrip("( \t\r\n")[:6].upper() == "SELECT"


def split(code, is_whole):
    """The statements of a cell; `is_whole` knows those that hold a semicolon."""
    statements, text, bare = [], "", ""
    for match in PIECE.finditer(code):
        piece = match.group()
        is_comment = piece.startswith(("--", "#")) or (piece.startswith("/*") and not piece.startswith("/*!"))
        if piece == ";" and is_whole(text + ";"):
            if bare.strip():
                statements.append(text.strip())
            text = bare = ""
            continue
        text += piece
        bare += "" if is_comment else piece
    if bare.strip():
        statements.append(text.strip())
    return statements


def shown(cell):
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, (bytes, bytearray)):
        try:
            return bytes(cell).decode("utf-8")
        except UnicodeDecodeError:
            return "0x" + bytes(cell).hex()
    return str(cell)


class Rows:
    """A result that grows up to its bound."""

    def __init__(self, columns):
        self.columns = columns
        self.rows = []
        self.size = 0

    def add(self, row):
        row = [shown(cell) for cell in row]
        self.size += sum(len(cell or "") + 4 for cell in row)
        if self.size > MAX_RESULT:
            raise Failure("RowIterationError", "the result is larger than %d characters; ask for fewer rows" % MAX_RESULT)
        self.rows.append(row)


def affected(count):
    rows = Rows(["affected_rows"])
    rows.rows.append([count])
    return rows


class Sqlite:
    def __init__(self):
        import sqlite3

        self.sqlite3 = sqlite3
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        # Python looks for interrupts only where Python runs.
        self.connection.set_progress_handler(lambda: 0, STEPS)

    def is_whole(self, text):
        return self.sqlite3.complete_statement(text)

    def run(self, statement):
        name = "DBQueryError" if is_query(statement) else "DBExecError"
        try:
            cursor = self.connection.execute(statement)
            if cursor.description is None:
                return affected(max(cursor.rowcount, 0))
            name = "RowIterationError"
            rows = Rows([column[0] for column in cursor.description])
            while True:
                some = cursor.fetchmany(ROWS)
                if not some:
                    return rows
                for row in some:
                    rows.add(row)
        except (self.sqlite3.Error, self.sqlite3.Warning, OverflowError) as error:
            if "interrupted" in str(error):
                raise KeyboardInterrupt from None
            raise Failure(name, str(error)) from None


class Mysql:
    """The part of MySQL's protocol that statements and their rows need."""

    def __init__(self, address):
        self.address = address
        self.socket = None
        self.open(socket.create_connection(address, CONNECT_SECONDS))

    def is_whole(self, text):
        return True

    def open(self, connected):
        self.socket = connected
        self.buffer = connected.makefile("rb")
        try:
            self.greet()
            connected.settimeout(None)
            for statement in ("CREATE DATABASE IF NOT EXISTS sandbox", "USE sandbox"):
                self.ask(statement, "DBInitError")
        except (OSError, ValueError, IndexError, EOFError) as error:
            self.close()
            raise Failure("DBPingError", "the MySQL server at %s:%d does not answer: %s" % (*self.address, error)) from None
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    def packet(self):
        data = b""
        while True:
            head = self.buffer.read(4)
            if len(head) < 4:
                raise EOFError("the connection ended")
            length = int.from_bytes(head[:3], "little")
            self.number = (head[3] + 1) & 255
            piece = self.buffer.read(length)
            if len(piece) < length:
                raise EOFError("the connection ended")
            data += piece
            if length < 0xFFFFFF:
                return data

    def send(self, data):
        while True:
            piece, data = data[:0xFFFFFF], data[0xFFFFFF:]
            self.socket.sendall(len(piece).to_bytes(3, "little") + bytes([self.number]) + piece)
            self.number = (self.number + 1) & 255
            if len(piece) < 0xFFFFFF:
                return

    def greet(self):
        greeting = self.packet()
        if greeting[:1] == b"\xff":
            raise ValueError(greeting[3:].decode("utf-8", "replace"))
        # Long passwords, protocol 4.1, transactions, 4.1 passwords, named ways to log in.
        flags = 0x1 | 0x200 | 0x2000 | 0x8000 | 0x80000
        self.send(flags.to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + bytes([45]) + bytes(23)
                  + b"root\0" + b"\0" + b"mysql_native_password\0")
        while True:
            answer = self.packet()
            kind = answer[0]
            if kind == 0:
                return
            if kind == 0xFF:
                raise Failure("DBPingError", error_of(answer))
            if kind == 0xFE:
                self.send(b"")  # another way to log in; with no password there is nothing to say in any
            elif kind != 1:
                raise ValueError("an answer that is not understood")

    def ask(self, statement, name):
        self.number = 0
        self.send(b"\x03" + statement.encode("utf-8", "surrogateescape"))
        answer = self.packet()
        if answer[0] == 0xFF:
            raise Failure(name, error_of(answer))
        if answer[0] == 0:
            return affected(lenenc(answer, 1)[0])
        if answer[0] == 0xFB:
            self.send(b"")  # LOAD DATA LOCAL: no file of ours is sent
            answer = self.packet()
            raise Failure(name, error_of(answer) if answer[0] == 0xFF else "LOAD DATA LOCAL is refused")
        columns = [self.column() for _ in range(lenenc(answer, 0)[0])]
        self.packet()  # the end of the columns
        rows = Rows(columns)
        failure = None
        while True:
            answer = self.packet()
            if answer[0] == 0xFF:
                raise Failure("RowIterationError", error_of(answer))
            if answer[0] == 0xFE and len(answer) < 9:
                break
            if failure is None:
                try:
                    rows.add(cells_of(answer))
                except Failure as found:
                    failure = found  # the rest is read all the same: the connection is used again
        if failure is not None:
            raise failure
        return rows

    def column(self):
        definition = self.packet()
        at = 0
        for _ in range(5):
            length, at = lenenc(definition, at)
            name, at = definition[at:at + length], at + length
        return name.decode("utf-8", "replace")

    def run(self, statement):
        if self.socket is None:
            try:
                connected = socket.create_connection(self.address, CONNECT_SECONDS)
            except OSError as error:
                raise Failure("DBPingError", "connect to %s:%d: %s" % (*self.address, error)) from None
            self.open(connected)
        try:
            return self.ask(statement, "DBQueryError" if is_query(statement) else "DBExecError")
        except (OSError, ValueError, IndexError, EOFError) as error:
            self.close()
            raise Failure("DBPingError", "the connection to the MySQL server broke: %s" % error) from None
        except KeyboardInterrupt:
            self.close()  # its answer would still come
            raise


def error_of(packet):
    words = packet[3:]
    if words[:1] == b"#":
        words = words[6:]
    return "Error %d: %s" % (int.from_bytes(packet[1:3], "little"), words.decode("utf-8", "replace"))


def lenenc(data, at):
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1:at + 1 + size], "little"), at + 1 + size


def cells_of(row):
    cells, at = [], 0
    while at < len(row):
        if row[at] == 0xFB:
            cells.append(None)
            at += 1
            continue
        length, at = lenenc(row, at)
        cells.append(row[at:at + length])
        at += length
    return cells


def database():
    host, _, port = os.environ.get("EXECD_CODE_MYSQL", "127.0.0.1:3306").rpartition(":")
    try:
        return Mysql((host, int(port)))
    except (OSError, ValueError):
        pass  # nobody listens there
    try:
        return Sqlite()
    except ImportError:
        sys.stderr.write("sql needs a MySQL server at %s:%s, or python3 with the module sqlite3" % (host, port))
        sys.exit(1)


def run(database, code):
    statements = split(code, database.is_whole)
    if not statements:
        raise Failure("DBExecError", "there is no statement")
    for number, statement in enumerate(statements, 1):
        rows = database.run(statement)
        try:
            text = json.dumps({"columns": rows.columns, "rows": rows.rows}, ensure_ascii=False)
        except ValueError as error:
            raise Failure("JSONMarshalError", str(error)) from None
        if number == len(statements):
            TALK.send("result", count=1, data={"text": text})
        else:
            TALK.send("display", data={"text": text})


DATABASE = None
try:
    DATABASE = database()
except Failure as failure:
    sys.stderr.write("%s: %s" % (failure.name, failure))
    sys.exit(1)
for _cell in cells(TALK):
    try:
        try:
            TALK.running = True
            run(DATABASE, _cell)
        finally:
            TALK.running = False
    except KeyboardInterrupt:
        TALK.send("error", name="KeyboardInterrupt", value="interrupted", traceback=["interrupted"])
    except Failure as failure:
        TALK.fail(failure.name, str(failure), ["%s: %s" % (failure.name, failure)])
    except Exception as failure:
        TALK.fail(type(failure).__name__, str(failure), [repr(failure)])
    TALK.send("end")

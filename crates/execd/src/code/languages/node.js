'use strict';
// Runs the cells of one JavaScript or TypeScript context. execd starts it and talks with it over descriptor 3:
// it sends `LENGTH\n` and LENGTH bytes of code. Every answer is a line of JSON, and before it the mark goes to
// both standard streams, so that execd knows what was written before the answer.
const fs = require('fs');
const inspector = require('inspector');
const { createRequire } = require('module');
const net = require('net');
const path = require('path');
const { Writable } = require('stream');
const util = require('util');
const vm = require('vm');

// Characters of one answer's forms; a larger form is left out and named.
const MAX_FORM = 8 * 1024 * 1024;
const DISPLAY = Symbol.for('Jupyter.display');
const RUN = Symbol.for('osb.run');
const TAKE = Symbol.for('osb.take');
// Where systems and npm keep packages for everybody.
const SHARED = ['/usr/lib/node_modules', '/usr/local/lib/node_modules', '/usr/share/nodejs',
    path.join(path.dirname(process.execPath), '../lib/node_modules')];

const [mark, isTypeScript] = head();
const { writeSync } = fs;
const pause = new Int32Array(new SharedArrayBuffer(4));
// Milliseconds between two looks at a pipe that is full and was told not to block, by a child process, say.
const FULL_PIPE = 2;
const session = new inspector.Session();
session.connect();

/** Reads a line, byte by byte: what follows it is not ours yet. */
function head() {
    const line = [];
    const byte = Buffer.alloc(1);
    while (fs.readSync(3, byte, 0, 1, null) === 1 && byte[0] !== 10) line.push(byte[0]);
    const [mark, dialect] = Buffer.from(line).toString().split(' ');
    return [mark, dialect === 'typescript'];
}

function writeAll(descriptor, data) {
    for (let at = 0; at < data.length;) {
        try {
            at += writeSync(descriptor, data, at);
        } catch (error) {
            if (error.code !== 'EAGAIN') throw error;
            Atomics.wait(pause, 0, 0, FULL_PIPE);
        }
    }
}

/** A standard stream without a state of its own: node's could be interrupted within a write and be stuck for ever. */
class Output extends Writable {
    constructor(fd) {
        super();
        this.fd = fd;
    }

    write(chunk, encoding, done) {
        const then = typeof encoding === 'function' ? encoding : done;
        writeAll(this.fd, typeof chunk === 'string' ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : undefined) : chunk);
        if (typeof then === 'function') process.nextTick(then);
        return true;
    }

    end(chunk, ...rest) {
        if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') this.write(chunk, ...rest);
        return this;
    }

    destroy() {
        return this;
    }
}

for (const [name, descriptor] of [['stdout', 1], ['stderr', 2]]) {
    Object.defineProperty(process, name, { value: new Output(descriptor), configurable: true, enumerable: true });
}

const talk = new net.Socket({ fd: 3 });
let sending = Promise.resolve();

/** Answers; answers go one after the other, each behind what was printed before it. */
function send(message) {
    // Never within the code of a cell, where an interrupt could tear it apart.
    sending = sending.then(() => {
        const marked = Buffer.from(mark);
        writeAll(1, marked);
        writeAll(2, marked);
        writeAll(3, Buffer.from(JSON.stringify(message) + '\n'));
    });
    return sending;
}

function textOf(value) {
    return util.inspect(value, { depth: 4, maxArrayLength: 1000, maxStringLength: MAX_FORM / 8 });
}

function formsOf(value) {
    const forms = {};
    const isObject = value !== null && (typeof value === 'object' || typeof value === 'function');
    if (isObject && typeof value[DISPLAY] === 'function') {
        const given = value[DISPLAY]();
        if (given && typeof given.then !== 'function') Object.assign(forms, given);
    }
    const text = forms['text/plain'] === undefined ? textOf(value) : String(forms['text/plain']);
    delete forms['text/plain'];
    for (const [form, data] of Object.entries(forms)) {
        if ((typeof data === 'string' ? data : JSON.stringify(data) || '').length > MAX_FORM) {
            process.stderr.write(`${form} is left out: at most ${MAX_FORM} characters are sent; write it to a file\n`);
            delete forms[form];
        }
    }
    return { ...forms, text: text.length > MAX_FORM ? text.slice(0, 1000) + '... (cut)' : text };
}

const shown = (data) => send({ kind: 'display', data });
const display = (...values) => values.forEach((value) => shown(formsOf(value)));
display.html = (html) => shown({ text: String(html), 'text/html': String(html) });
display.forms = (forms) => shown(formsOf({ [DISPLAY]: () => forms }));

/** `import` statements become awaited imports, which a cell may hold. */
function withoutImports(code) {
    const names = (list) => list.split(',').map((name) => name.trim()).filter((name) => name && !/^type\s/.test(name))
        .map((name) => name.replace(/\s+as\s+/, ': ')).join(', ');
    const bindings = (clause) => {
        const [, first, rest] = /^(?:([\w$]+)\s*,?\s*)?([\s\S]*)$/.exec(clause.trim());
        const parts = [];
        if (rest.startsWith('{')) parts.push(names(rest.slice(1, rest.lastIndexOf('}'))));
        if (first) parts.push(`default: ${first}`);
        const whole = /^\*\s*as\s+([\w$]+)$/.exec(rest);
        return [parts.filter(Boolean).join(', '), whole && whole[1]];
    };
    return code
        .replace(/(?<=^|;)[ \t]*import\s+type\s[^;'"]*from\s*(['"])[^'"\n]+\1[ \t]*;?/gm, '')
        .replace(/(?<=^|;)([ \t]*)import\s+([\w$*{][^;'"()]*?)\s*from\s*((['"])[^'"\n]+\4)[ \t]*;?/gm, (_, indent, clause, from) => {
            const [parts, whole] = bindings(clause);
            const load = `await __osb_import(${from})`;
            if (whole) return `${indent}const ${whole} = ${load};` + (parts ? ` const {${parts}} = ${whole};` : '');
            return `${indent}const {${parts}} = ${load};`;
        })
        .replace(/(?<=^|;)([ \t]*)import\s*((['"])[^'"\n]+\3)[ \t]*;?/gm, '$1await __osb_import($2);')
        .replace(/(?<![\w$.])import\s*\(/g, '__osb_import(');
}

/** How TypeScript becomes JavaScript here, or undefined. */
function stripper() {
    const { stripTypeScriptTypes } = require('module');
    if (stripTypeScriptTypes) {
        return (code) => {
            try {
                return stripTypeScriptTypes(code, { mode: 'transform' });
            } catch (error) {
                throw new SyntaxError(error.message);
            }
        };
    }
    for (const from of [process.cwd(), ...(process.env.NODE_PATH || '').split(':').filter(Boolean), ...SHARED]) {
        for (const name of ['typescript', path.join(from, 'typescript')]) {
            try {
                const ts = createRequire(from + '/')(name);
                return (code) => transpiled(ts, code);
            } catch { /* the next place may have it */ }
        }
    }
    return undefined;
}

function transpiled(ts, code) {
    const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };
    const made = ts.transpileModule(code, { compilerOptions, reportDiagnostics: true });
    const mistake = (made.diagnostics || []).find((found) => found.category === ts.DiagnosticCategory.Error);
    if (mistake) throw new SyntaxError(ts.flattenDiagnosticMessageText(mistake.messageText, '\n'));
    return made.outputText;
}

let cell; // the one that runs: how it is ended
let count = 0;

class KeyboardInterrupt extends Error {}
const interrupted = () => Object.assign(new KeyboardInterrupt('interrupted'), { name: 'KeyboardInterrupt', stack: '' });

process.on('SIGINT', () => cell && cell.fail(interrupted()));
process.on('uncaughtException', (error) => process.stderr.write(`Uncaught ${textOf(error)}\n`));
const warn = process.emitWarning;
process.emitWarning = (...warning) => (String(warning[1]?.type ?? warning[1]) === 'ExperimentalWarning' ? undefined : warn.apply(process, warning));

/** The value behind what the inspector tells. */
function valueOf(remote) {
    if (!remote.objectId) {
        return remote.unserializableValue === undefined ? remote.value : vm.runInThisContext(`(${remote.unserializableValue})`);
    }
    let value;
    globalThis[TAKE] = (taken) => { value = taken; };
    const functionDeclaration = `function (value) { globalThis[Symbol.for('osb.take')](value); }`;
    const { objectId } = remote;
    session.post('Runtime.callFunctionOn', { functionDeclaration, objectId, arguments: [{ objectId }] });
    session.post('Runtime.releaseObject', { objectId });
    delete globalThis[TAKE];
    return value;
}

/** Runs code to its end, `await` included; what is thrown is thrown. */
function evaluate(expression) {
    return new Promise((done, fail) => {
        cell = { fail };
        globalThis[RUN] = () => session.post('Runtime.evaluate', { expression, replMode: true, awaitPromise: true }, (error, made) => {
            if (error) fail(new Error(error.message || 'the code could not be run'));
            else if (made.exceptionDetails) fail(valueOf(made.exceptionDetails.exception || { value: made.exceptionDetails.text }));
            else done(valueOf(made.result));
        });
        try {
            vm.runInThisContext("globalThis[Symbol.for('osb.run')]()", { breakOnSigint: true });
        } catch (error) {
            fail(error && error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED' ? interrupted() : error);
        }
    });
}

const isError = (value) => value instanceof Error || util.types.isNativeError(value);

function report(error) {
    if (!isError(error)) return { kind: 'error', name: 'Error', value: typeof error === 'string' ? error : textOf(error), traceback: [`Uncaught ${textOf(error)}`] };
    const lines = String(error.stack || `${error.name}: ${error.message}`).split('\n');
    const ours = lines.findIndex((line) => /\bSession\.post\b|node:inspector|at globalThis\.<computed>/.test(line));
    return { kind: 'error', name: String(error.name), value: String(error.message), traceback: ours < 0 ? lines : lines.slice(0, ours) };
}

/** Takes what is left of an interrupt, which node may tell in more than one way: the next cell is not meant. */
async function settle() {
    for (let quiet = 0; quiet < 2;) {
        await new Promise((done) => setImmediate(done));
        try {
            vm.runInThisContext('0', { breakOnSigint: true });
            quiet += 1;
        } catch {
            quiet = 0;
        }
    }
}

async function run(code) {
    count += 1;
    try {
        const source = withoutImports(code);
        const value = await evaluate(strip ? strip(source) : source);
        if (value !== undefined && !code.trimEnd().endsWith(';')) send({ kind: 'result', count, data: formsOf(value) });
    } catch (error) {
        send(report(error));
        cell = undefined;
        if (error instanceof KeyboardInterrupt) await settle();
    }
    cell = undefined;
    await send({ kind: 'end' });
}

const strip = isTypeScript ? stripper() : undefined;
if (isTypeScript && !strip) {
    fs.writeSync(2, `typescript needs node 22.13 or newer, or the package "typescript"; this is node ${process.version}`);
    process.exit(1);
}
const define = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
define('require', createRequire(process.cwd() + '/'));
define('display', display);
define('__osb_import', (name) => import(name));

// What came of cells that are not whole yet.
let pending = Buffer.alloc(0);
let queue = Promise.resolve();
talk.on('data', (data) => {
    pending = Buffer.concat([pending, data]);
    for (;;) {
        const end = pending.indexOf(10);
        const length = end < 0 ? NaN : Number(pending.subarray(0, end));
        if (!(pending.length >= end + 1 + length)) return;
        const code = pending.subarray(end + 1, end + 1 + length).toString();
        pending = pending.subarray(end + 1 + length);
        queue = queue.then(() => run(code));
    }
});
talk.on('close', () => process.exit(0));
send({ kind: 'ready' });

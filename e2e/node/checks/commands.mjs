import assert from "node:assert/strict";

const text = (messages) => messages.map((message) => message.text).join("\n");

export default async function ({ create }) {
  const sandbox = await create();
  const run = await sandbox.commands.run("echo out; echo err >&2; exit 3");
  assert.equal(text(run.logs.stdout).trim(), "out");
  assert.equal(text(run.logs.stderr).trim(), "err");
  assert.equal(run.exitCode, 3);
  assert.ok(run.error, "a failed command is an error");

  const fine = await sandbox.commands.run("echo $A; pwd", { workingDirectory: "/usr", envs: { A: "b c" } });
  assert.equal(fine.exitCode, 0);
  assert.deepEqual(text(fine.logs.stdout).trim().split(/\n+/), ["b c", "/usr"]);

  const seen = [];
  await sandbox.commands.run("for n in 1 2 3; do echo $n; done", {}, {
    onStdout: (message) => void seen.push(message.text.trim()),
  });
  assert.deepEqual(seen.filter(Boolean), ["1", "2", "3"]);

  const late = await sandbox.commands.run("sleep 60", { timeoutSeconds: 1 });
  assert.notEqual(late.exitCode, 0);
  assert.ok(late.error, "a time-out is an error");
}

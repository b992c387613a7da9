import assert from "node:assert/strict";

const text = (run) => run.logs.stdout.map((message) => message.text).join("\n").trim();

export default async function ({ create }) {
  const sandbox = await create();
  assert.equal((await sandbox.isolation.capabilities()).available, true);
  await sandbox.commands.run("mkdir -p /workspace; echo below >/workspace/a");

  const request = { workspace: { path: "/workspace", mode: "overlay" } };
  const session = await sandbox.isolation.create(request);
  assert.equal(text(await session.run("cat a; echo above >a; export KEPT=yes")), "below");
  assert.deepEqual(text(await session.run("cat a; echo $KEPT")).split(/\n+/), ["above", "yes"]);
  assert.equal((await session.run("(exit 5)")).exitCode, 5);
  // What the session wrote is its own.
  assert.equal(text(await sandbox.commands.run("cat /workspace/a")), "below");
  assert.equal((await sandbox.isolation.list()).length, 1);
  await session.delete();
  assert.equal((await sandbox.isolation.list()).length, 0);

  assert.equal(text(await sandbox.isolation.runOnce("cat /workspace/a", "/workspace")), "below");
  const given = await sandbox.isolation.withSession(request, (own) => own.run("echo within"));
  assert.equal(text(given), "within");
}

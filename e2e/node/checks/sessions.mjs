import assert from "node:assert/strict";

const text = (run) => run.logs.stdout.map((message) => message.text).join("\n").trim();

export default async function ({ create }) {
  const { commands } = await create();
  const id = await commands.createSession({ workingDirectory: "/usr" });
  assert.equal(text(await commands.runInSession(id, "pwd; cd /tmp; export A=kept")), "/usr");
  assert.deepEqual(text(await commands.runInSession(id, "pwd; echo $A")).split(/\n+/), ["/tmp", "kept"]);
  assert.equal((await commands.runInSession(id, "(exit 4)")).exitCode, 4);
  await commands.deleteSession(id);
  await assert.rejects(commands.runInSession(id, "true"));
}

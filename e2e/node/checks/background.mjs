import assert from "node:assert/strict";

export default async function ({ create }) {
  const sandbox = await create();
  const started = await sandbox.commands.run("echo begun; exec sleep 60", { background: true });
  const id = started.id;
  assert.ok(id, "a background command has an id");

  let logs = { content: "", cursor: undefined };
  let content = "";
  for (const end = Date.now() + 20_000; !content.includes("begun") && Date.now() < end; ) {
    logs = await sandbox.commands.getBackgroundCommandLogs(id, logs.cursor);
    content += logs.content;
  }
  assert.equal(content, "begun\n");
  assert.equal((await sandbox.commands.getCommandStatus(id)).running, true);

  await sandbox.commands.interrupt(id);
  let status = { running: true };
  for (const end = Date.now() + 20_000; status.running && Date.now() < end; ) {
    status = await sandbox.commands.getCommandStatus(id);
  }
  assert.equal(status.running, false);
  assert.notEqual(status.exitCode, 0);
}

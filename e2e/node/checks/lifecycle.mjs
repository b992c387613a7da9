import assert from "node:assert/strict";
import { Sandbox, SandboxManager, SandboxApiException } from "@alibaba-group/opensandbox";

export default async function ({ connectionConfig, create }) {
  const manager = SandboxManager.create({ connectionConfig });
  const sandbox = await create({ metadata: { made: "npm" }, env: { GREETING: "hello" } });
  const info = await sandbox.getInfo();
  assert.equal(info.status.state, "Running");
  assert.ok(info.expiresAt instanceof Date && info.expiresAt > new Date());
  assert.equal((await sandbox.commands.run("echo $GREETING")).logs.stdout[0].text.trim(), "hello");
  assert.ok((await sandbox.getMetrics()).cpuCount > 0);

  const listed = await manager.listSandboxInfos({ metadata: { made: "npm" }, pageSize: 100 });
  assert.ok(listed.items.some((item) => item.id === sandbox.id));
  assert.equal((await sandbox.patchMetadata({ made: null, now: "patched" })).metadata.now, "patched");
  const renewed = await sandbox.renew(900);
  assert.ok(renewed.expiresAt > info.expiresAt);

  const again = await Sandbox.connect({ connectionConfig, sandboxId: sandbox.id });
  assert.equal((await again.commands.run("echo again")).logs.stdout[0].text.trim(), "again");
  await again.close();

  await sandbox.kill();
  await assert.rejects(manager.getSandboxInfo(sandbox.id), (error) => {
    assert.ok(error instanceof SandboxApiException);
    assert.equal(error.statusCode, 404);
    return true;
  });
  await manager.close();
}

import assert from "node:assert/strict";
import { SandboxApiException } from "@alibaba-group/opensandbox";

// An address of nobody, which a connection would wait for; refused at once where the policy does not name it.
const NOBODY = "198.18.0.1";
const CONNECT = `python3 -c "
import errno, socket
try:
    socket.create_connection(('${NOBODY}', 80), timeout=5)
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
"`;

export default async function ({ create }) {
  const networkPolicy = { defaultAction: "deny", egress: [{ action: "allow", target: "origin.test" }] };
  const sandbox = await create({ networkPolicy });
  const targets = async () => (await sandbox.getEgressPolicy()).egress.map((rule) => `${rule.action} ${rule.target}`);
  assert.equal((await sandbox.getEgressPolicy()).defaultAction, "deny");
  assert.deepEqual(await targets(), ["allow origin.test"]);
  assert.equal((await sandbox.commands.run(CONNECT)).logs.stdout[0].text.trim(), "ECONNREFUSED");

  await sandbox.patchEgressRules([{ action: "allow", target: "*.other.test" }]);
  assert.deepEqual(await targets(), ["allow *.other.test", "allow origin.test"]);
  await sandbox.deleteEgressRules(["origin.test", "*.other.test"]);
  assert.deepEqual(await targets(), []);

  const refused = (error) => {
    assert.ok(error instanceof SandboxApiException);
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /egress\[0\]\.target/);
    return true;
  };
  const wrong = [{ action: "allow", target: "10.0.0.0/99" }];
  await assert.rejects(sandbox.patchEgressRules(wrong), refused);
  await assert.rejects(create({ networkPolicy: { egress: wrong } }), refused);
}

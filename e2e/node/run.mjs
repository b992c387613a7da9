// Runs one check of the published npm client: node run.mjs NAME, against OSB_DOMAIN with OSB_KEY.
//
// A check is a module whose default export gets what `checks` need: a configuration and a sandbox, ended here.

import { Sandbox } from "@alibaba-group/opensandbox";

const name = process.argv[2];
const connectionConfig = {
  domain: process.env.OSB_DOMAIN,
  apiKey: process.env.OSB_KEY,
  disableMetrics: true,
};
const made = [];

async function create(options = {}) {
  const sandbox = await Sandbox.create({ connectionConfig, image: "host", timeoutSeconds: 300, ...options });
  made.push(sandbox);
  return sandbox;
}

const check = (await import(`./checks/${name}.mjs`)).default;
try {
  await check({ connectionConfig, create });
} finally {
  for (const sandbox of made) {
    // A check may have ended its own sandbox.
    await sandbox.kill().catch(() => {});
    await sandbox.close();
  }
}

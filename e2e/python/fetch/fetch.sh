# Says of each client whether it got what only a credential opens, as `NAME yes` or `NAME no`; nothing is set for any of
# them. What they said themselves is in /tmp/said.
cd /tmp/fetch
apt=/tmp/apt
mkdir -p /tmp/said $apt/etc/apt.conf.d $apt/lists/partial $apt/cache/archives/partial

try() {
	name=$1
	shift
	if "$@" >"/tmp/said/$name" 2>&1 </dev/null; then echo "$name yes"; else echo "$name no"; fi
}

pip=$(echo /usr/share/python-wheels/pip-*.whl)
echo "deb [trusted=yes] https://index.test/apt ./" >$apt/etc/sources.list
with_pip() { env PYTHONPATH="$pip" python3 "$@"; }
update() {
	apt-get update --error-on=any -o Acquire::Retries=0 -o APT::Sandbox::User=root -o Dir::Etc=$apt/etc \
		-o Dir::State=$apt -o Dir::State::status=/dev/null -o Dir::Cache=$apt/cache
}

browse() { chromium --headless --no-sandbox --disable-gpu --dump-dom "$1" | grep 'you said'; }

try curl curl -fsS -H 'Authorization: Bearer decoy' https://api.test/v1/curl
try git git ls-remote https://index.test/repository.git
try apt update
try python python3 -c "import urllib.request; urllib.request.urlopen('https://api.test/v1/python')"
try requests with_pip -c "from pip._vendor import requests; requests.get('https://api.test/v1/requests').raise_for_status()"
try pip with_pip -m pip download thing --no-deps -d /tmp/down --retries 0 --disable-pip-version-check -i https://index.test/simple/
try node node -e "require('https').get('https://api.test/v1/node', (answer) => process.exit(answer.statusCode === 200 ? 0 : 1))"
try java java -XX:TieredStopAtLevel=1 -Xshare:auto -cp . Fetch https://api.test/v1/java
try go ./fetch api.test /v1/go
try chromium browse https://api.test/v1/chromium

# Says of each client whether it trusts the server of this sandbox, as `NAME yes` or `NAME no`, with $1 before the name.
# What they said themselves is in /tmp/said.
cd /srv/trust
apt=/tmp/apt$1
mkdir -p /tmp/said $apt/etc/apt.conf.d $apt/lists/partial $apt/cache/archives/partial

try() {
	name=$1
	shift
	if "$@" >"/tmp/said/$name" 2>&1 </dev/null; then echo "$name yes"; else echo "$name no"; fi
}

url=https://origin.test
pip=$(echo /usr/share/python-wheels/pip-*.whl)
echo "deb [trusted=yes] $url/apt ./" >$apt/etc/sources.list
with_pip() { env PYTHONPATH="$pip" python3 "$@"; }
update() {
	apt-get update --error-on=any -o Acquire::Retries=0 -o APT::Sandbox::User=root -o Dir::Etc=$apt/etc \
		-o Dir::State=$apt -o Dir::State::status=/dev/null -o Dir::Cache=$apt/cache
}
# It ends with 0 also when it shows an error.
browse() { chromium --headless --no-sandbox --disable-gpu --dump-dom "$1" | grep Packages; }

(
	try "$1java" java -XX:TieredStopAtLevel=1 -Xshare:auto -cp . Client $url/file
	try "$1node" node -e "require('https').get('$url/file')"
	try "$1go" ./client
	try "$1chromium" browse $url/apt/
) &
(
	try "$1curl" curl -fsS $url/file
	try "$1wget" wget -q --tries 1 -O - $url/file
	try "$1git" git ls-remote $url/repository.git
	try "$1openssl" openssl s_client -no-CAfile -no-CAstore -CApath /etc/ssl/certs -verify_return_error -connect 127.0.0.1:443
	try "$1apt" update
) &
(
	try "$1python" python3 -c "import urllib.request; urllib.request.urlopen('$url/file')"
	try "$1requests" with_pip -c "from pip._vendor import requests; requests.get('$url/file').raise_for_status()"
	try "$1pip" with_pip -m pip index versions thing --retries 0 --disable-pip-version-check -i $url/simple/
) &
wait

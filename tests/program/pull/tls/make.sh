#!/bin/sh
# Makes the certificate authority of the tests' stand-in hub, and the stand-in's certificate: make.sh
set -eu
cd "$(dirname "$0")"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=LEAP's tests" \
	-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -keyout hub.key -out hub.csr
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n' >hub.ext
openssl x509 -req -in hub.csr -CA ca.pem -CAkey ca.key -days 36500 -extfile hub.ext -out hub.pem
rm ca.key hub.csr hub.ext ca.srl

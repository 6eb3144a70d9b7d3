# The agent's image: `make image` builds it with podman, buildah or docker.
#
# BASE is any Debian with apt, and with Python 3.11 or newer and its module venv; `hack/image --debian`
# makes one from Debian's packages alone.  The versions of Python packages are in deploy/constraints.txt.
ARG PYTHON_VERSION=3.11.13
ARG DEBIAN_SUITE=bookworm
ARG BASE=python:${PYTHON_VERSION}-slim-${DEBIAN_SUITE}

FROM ${BASE} AS build
WORKDIR /build
# What builds the package is of these versions, too: for that, pip reads the second variable from 25.3 on,
# and the first one before.
ENV PIP_CONSTRAINT=/build/constraints.txt \
    PIP_BUILD_CONSTRAINT=/build/constraints.txt
COPY deploy/constraints.txt pyproject.toml README.md LICENSE ./
COPY agent agent
# Two environments, so that the one which is kept has no pip.  Whoever needs an index or authority of
# his own gives pip's configuration as a secret; it stays out of the image.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3 -m venv tools \
 && python3 -m venv --without-pip /opt/numalet \
 && tools/bin/pip --python /opt/numalet/bin/python install --no-cache-dir '.[nrt,devices]'

FROM ${BASE}
ARG LIBNUMA_VERSION=2.0.16-1
RUN apt-get update \
 && apt-get install --yes --no-install-recommends "libnuma1=${LIBNUMA_VERSION}" \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/numalet /opt/numalet
# MALLOC_*: what was needed for a moment goes back to the system, 3 to 7 MiB.
ENV PATH=/opt/numalet/bin:$PATH \
    MALLOC_ARENA_MAX=1 \
    MALLOC_TRIM_THRESHOLD_=131072 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="numalet" \
      org.opencontainers.image.licenses="Apache-2.0"
# Enough for `numalet plan`.  The DaemonSet asks for uid 0, since cgroup files are root's, and for no
# capability.
USER 65532:65532
ENTRYPOINT ["numalet"]
CMD ["--help"]

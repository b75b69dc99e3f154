# The image of `kubeocean`: the manager and the process of each binding are the same program.
#
#   docker build --tag kubeocean .                       any base with python 3.11 or newer, venv and tzdata; it needs no shell
#   make image                                           without docker and registry: deploy/dev/image.py
#
# It runs as an unprivileged user, needs no writable root file system, and downloads nothing at run time.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
# pip's own settings: a mirror, or a folder of wheels.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
ARG PIP_DISABLE_PIP_VERSION_CHECK=1
ARG PIP_ROOT_USER_ACTION=ignore
COPY pyproject.toml README.md LICENSE /src/
COPY vkubelet /src/vkubelet
COPY kubeocean /src/kubeocean
COPY fleet /src/fleet
COPY providers /src/providers
RUN ["python3", "-m", "venv", "/opt/kubeocean"]
RUN ["/opt/kubeocean/bin/python", "-m", "pip", "install", "--no-cache-dir", "/src[fast]"]
# Nothing is installed into a running container.
RUN ["/opt/kubeocean/bin/python", "-m", "pip", "uninstall", "--yes", "pip", "setuptools"]

FROM ${BASE}
# The version of pyproject.toml, and the commit.
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="kubeocean" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.vendor="The vkubelet authors" \
      org.opencontainers.image.description="The nodes of worker clusters as virtual nodes of a computing cluster" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/kubeocean /opt/kubeocean
ENV PATH=/opt/kubeocean/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TZ=UTC
# `runAsNonRoot` requires a numeric user.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/opt/kubeocean/bin/kubeocean"]
CMD ["manager"]

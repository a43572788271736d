-- Messages that the full-text index can't be trusted with: some of their text is written without spaces between words.
CREATE TABLE unspaced (seq INTEGER PRIMARY KEY);

INSERT INTO unspaced
SELECT DISTINCT id >> 24
FROM lines
WHERE text GLOB ('*[' || char(3584) || '-' || char(4255) || char(4352) || '-' || char(4607) || char(6016) || '-'
    || char(6143) || char(11904) || '-' || char(12255) || char(12293) || '-' || char(12295) || char(12352) || '-'
    || char(19903) || char(19968) || '-' || char(40959) || char(43360) || '-' || char(43391) || char(44032) || '-'
    || char(55295) || char(63744) || '-' || char(64255) || char(65280) || '-' || char(65519) || char(110592) || '-'
    || char(110959) || char(131072) || '-' || char(262143) || ']*');
